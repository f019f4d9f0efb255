"""The leases of a run, and which peers are active.

- `lease_service`: grants leases
- `peer_recorder`: records what peers do
- `prompt_writer`: prompts, written before they are leased
- `provisioner`: applies the plan
- `recorder`: records what the run does
- `recovery`: leases and rollouts that a restart finds in the ledger
"""
