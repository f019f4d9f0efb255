"""Verified records in, policy versions out.

Nothing here touches the network or trio, but for the ranks of one trainer among themselves. Only `learner.training`
imports torch, and it runs in the trainer's child process alone.

- `ledger`: all that the learner must remember, in one SQLite file
- `simulation`: a swarm in virtual time, for plans
- `scheduling`: how many rollouts each peer is leased, and of which version
- `trust`: audits, and what they add up to about a peer
- `rollouts`: from a delivery to a batch: admission, episodes, the buffer
- `monitoring`: alarms before a collapse, scores, leases that bear nothing
- `training`: the trainer: model, loss, optimizer, checkpoints
- `trial`: what is generated before a run begins, and whether engine and trainer agree on it
- `curriculum`: which problem is asked next
- `provisioning`: how many machines are needed, and which to activate
- `trainer_api`: what a node asks of the trainer, and what it hears
- `artifacts`: files that are made, read and checked: model directories, chunks, text of operators
"""
