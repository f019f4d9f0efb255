"""Grant the leases of a run, and decide which peers are active.

- `lease_service`: grants leases, recalls them, and lets them expire
- `peer_recorder`: records what peers do
- `prompt_writer`: writes prompts before they are leased
- `provisioner`: applies the plan
- `recovery`: leases and rollouts that a restart finds in the ledger
- `run_recording`: records what the run does
- `run_settings`: changes settings while the run goes on
"""
