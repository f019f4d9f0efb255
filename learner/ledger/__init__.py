"""All that the learner must remember: leases, verdicts, receipts, versions, steps, and what each peer did. One SQLite
file holds it, so that what belongs together reaches the disk together.

- `audit_recount`: the sequential test of an audit once more, from what the ledger kept
- `compaction`: makes the ledger smaller, and loses nothing
- `evidence`: what was signed, by the learner and by receivers, and which records trained which version
- `ledger`: the ledger as one object, of the parts below
- `peers`: which peer was here for how long, at which price, and what it relayed
- `queries`: what a ledger says: the books below ask by these, and so do reports and commands
- `reach`: how peers are reached, and how they met
- `receipt_packing`: receipts without what the ledger has in its rows anyway
- `reputation`: what was observed of each peer, day by day, and how its stays ended
- `rows`: what is written to the ledger and read from it, as values
- `sqlite`: the file itself: its tables, its format, its sums
- `training`: incarnations, steps, published versions, evaluations and checkpoints
- `troubles`: what rollout nodes say that they cannot do
- `trust`: what audits found, which peers are banned, which verdicts were revised
- `work`: leases, the verdicts on their records, and receipts
- `work_tables`: writes leases, records and receipts into their tables
"""
