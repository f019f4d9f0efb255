"""What a ledger says, for reports and commands: all that they ask of its tables. Nothing here writes.

- `peers`: who was here, and what it relayed
- `reader`: the ledger as it is at one moment
- `run`: incarnations, steps, versions, evaluations and plans
- `trust`: what audits found, what the operator decided
- `work`: leases, and the verdicts on their records
"""
