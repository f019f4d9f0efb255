"""Run a rollout node: lease prompts, generate with the newest version here, sign records and deliver them.

- `app`: opens state, network and engine, and runs the services
- `availability`: whether the node may work now
- `command`: `volery join`, and how Ctrl-C ends it
- `dry_run`: `volery join --dry-run`
- `owner_control`: the owner's pause, resume and drain
- `retry_policy`: how long the node retries what fails
- `proof_client`: proofs that records were trained on
- `receipt_revisions`: verdicts that the learner revised
- `resource_limits`: how much of the machine the node may use
- `services`: builds the services of a node, and connects them
- `serving_version`: which version is in service
- `session_records`: how long the node was at work, and how many bytes it moved
- `teaching`: a node that scores with a teacher, and generates nothing
- `session_events`: the learner's messages beside leases: introductions, recalls, revised receipts
- `worker`: leases, generates, signs and delivers, and leaves the swarm
- `yield_to_programs`: pauses the node while programs of its owner run
"""
