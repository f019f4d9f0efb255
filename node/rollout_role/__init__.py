"""The rollout node: it leases prompts, generates with the newest version it holds, signs and delivers.

- `app`: opens what the services stand on, and runs them
- `availability`: whether the node may work now
- `command`: `volery join`
- `dry_run`: `volery join --dry-run`
- `line_events`: what of a connection's life is an event
- `owner_control`: what its owner asks
- `proof_client`: proofs that records were trained on
- `receipt_revisions`: verdicts that were revised
- `resource_limits`: how much of the machine it may take
- `retries`: how long it goes on trying what fails
- `services`: all services of a node, built
- `serving_version`: which version is in service
- `session_records`: how long it was at work, and what it moved
- `worker`: its loops
- `yield_to_programs`: makes room for programs of its owner
"""
