"""Read a ledger's tables, for the learner, reports and commands. Nothing here writes.

- `peers`: who was here, and what it relayed
- `reader`: the ledger as it is at one moment
- `receipts`: receipts as they were signed, whether the ledger has them whole or packed
- `training`: incarnations, steps, versions, evaluations, checkpoints and plans
- `trust`: what audits found, what the operator decided
- `work`: leases, and the verdicts on their records
"""
