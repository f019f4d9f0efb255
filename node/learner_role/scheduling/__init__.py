"""The leases of a run, and which peers are active.

- `lease_service`: grants leases, recalls them, and lets them run out
- `peer_recorder`: records what peers do
- `prompt_writer`: prompts, written before they are leased
- `provisioner`: applies the plan
- `recovery`: leases and rollouts that a restart finds in the ledger
- `run_recording`: records what the run does
"""
