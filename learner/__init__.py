"""Turn verified records into policy versions.

Nothing here touches the network or trio, except that the ranks of one trainer communicate with each other. Only
`learner.training` imports torch, and only the trainer's child process runs it.

- `ledger`: everything that the learner must remember, in one SQLite file
- `simulation`: simulate a swarm in virtual time, for plans
- `scheduling`: how many rollouts to lease to each peer, and of which policy version
- `trust`: audits, and the evidence about a peer that they add up to
- `rollouts`: from a delivery to a batch: admission, episodes, the rollout buffer
- `monitoring`: alarms before a collapse, scores, leases that bring no records
- `training`: the trainer: model, loss, optimizer, checkpoints
- `trial`: what is generated before a run begins, and whether engine and trainer agree on it
- `curriculum`: which problem comes next
- `provisioning`: how many machines are needed, and which to activate
- `trainer_api`: what a node asks of the trainer, and what the trainer replies
- `artifacts`: files that are made, read and checked: model directories, chunks, texts of operators
"""
