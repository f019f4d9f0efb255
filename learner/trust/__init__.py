"""Judge a peer's work, and say why. Pure: a rule returns a value with its evidence, and never acts on a peer.

Audits regenerate tokens with the same weights; tests over their history bound how often an honest peer is convicted.

- `audit_history`: what audits have shown of a peer, and whether its next group is audited
- `audit_queue`: which audits wait, and which is next
- `ban_evidence`: whether audited tokens can still be an honest peer's: when a peer is banned
- `margins`: by how much two honest machines may differ
- `near_duplicates`: completions that repeat another lease's: a reason for an audit
- `observations`: a peer's presence and its abandoned leases, day by day
- `outliers`: peers whose rewards, lengths or log probabilities are unusual: a reason for an audit
- `relay_credit`: which peer is credited for relaying
- `selection_test`: whether a peer delivers selectively
- `unaudited_exposure`: how much is trained on of a peer since its last audit
"""
