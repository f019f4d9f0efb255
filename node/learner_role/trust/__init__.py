"""Decide which peers are trusted: audits, checks for selective delivery, bans, reputation.

- `audit_service`: audits, and their consequences
- `auditor`: runs audits on an engine
- `bans`: bans for other reasons than audits, pardons, and their consequences
- `engine_budget`: how much engine time background audits may use
- `lease_regeneration`: regenerates the tokens of a failed audit
- `operator_service`: carries out the operator's bans and pardons
- `peer_standings`: how far each peer is trusted, and its quota
- `receipt_revisions`: receipts that are signed again
- `reputation_service`: reputations, and signed notes of them
- `selection_checker`: regenerates groups that peers withheld or delivered
- `selection_service`: evidence of selective delivery, and its consequences
- `version_retention`: versions that are kept for audits
"""
