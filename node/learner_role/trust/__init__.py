"""Which peers are believed: audits, checks for selective delivery, bans, reputation.

- `audit_replay`: tokens of an audit, generated once more
- `audit_service`: audits and what follows from them
- `auditor`: asks an engine
- `engine_budget`: how much engine time background audits may take
- `reputation`: reputations, and notes of them
- `selection_checker`: regenerates what peers withheld
- `selection_service`: what selective delivery leads to
- `version_retention`: versions kept for audits
"""
