"""The rollout node: it leases prompts, generates with the newest version it holds, signs and delivers.

- `app`: opens what the services stand on, and runs them
- `availability`: whether the node may work now
- `command`: `volery join`, and how Ctrl-C ends it
- `dry_run`: `volery join --dry-run`
- `owner_control`: what its owner asks
- `patience`: how long it goes on trying what fails
- `proof_client`: proofs that records were trained on
- `receipt_revisions`: verdicts that were revised
- `resource_limits`: how much of the machine it may take
- `services`: builds the services of a node, and says who is given what
- `serving_version`: which version is in service
- `session_records`: how long it was at work, and what it moved
- `teaching`: a node that scores with a teacher, and generates nothing
- `work_line_news`: what the learner said on the work line: whom to dial, what to log, what to drop
- `worker`: leases, generates, signs and delivers, and how it leaves
- `yield_to_programs`: makes room for programs of its owner
"""
