"""Store all that the learner must remember in one SQLite file: leases, verdicts, receipts, versions, steps, peers.

It is one file, so that rows that belong together reach the disk together.

- `audit_recount`: repeats the sequential test of a peer's audits from what the ledger kept
- `compaction`: makes the ledger smaller without losing anything
- `evidence`: what the learner and receivers signed, and which records trained which version
- `ledger`: the ledger as one object, made of the parts below
- `peers`: which peer was here for how long, at which price, and what it relayed
- `queries`: all that is read from a ledger, by the modules below, reports and commands
- `reach`: how peers are reached, and how they met
- `receipt_packing`: receipts without the bytes that the ledger has in its rows anyway
- `reputation`: observations of each peer by day, and how its sessions ended
- `rows`: the values that are written to the ledger and read from it
- `sqlite`: the file itself: its tables, its format, its sums
- `training`: incarnations, steps, published versions, evaluations and checkpoints
- `troubles`: what rollout nodes report that they cannot do
- `trust`: what audits found, which peers are banned, which verdicts were revised
- `work`: leases, the verdicts on their records, and receipts
- `work_tables`: writes leases, records and receipts into their tables
"""
