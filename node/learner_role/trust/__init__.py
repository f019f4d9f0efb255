"""Which peers are believed: audits, checks for selective delivery, bans, reputation.

- `audit_service`: audits and what follows from them
- `auditor`: asks an engine
- `bans`: bans that no audit brought, pardons, and what follows
- `engine_budget`: how much engine time background audits may take
- `lease_redraw`: tokens of an audit, generated once more
- `operator_service`: what the operator decides
- `peer_standings`: how far each peer is trusted, and its quota
- `receipt_revisions`: receipts that are signed anew
- `reputation_service`: reputations, and notes of them
- `selection_checker`: regenerates what peers withheld
- `selection_service`: what selective delivery leads to
- `version_retention`: versions kept for audits
"""
