"""What the learner believes of a peer's work, and why. Audits draw tokens again with the same weights; tests over their
history bound how often an honest peer is convicted. Pure: a rule returns a value with its evidence, and nothing here
acts on a peer.

- `audit_history`: what audits have shown of a peer, and whether its next group is audited
- `audit_queue`: which audits wait, and which is next
- `ban_evidence`: whether audited tokens can still be an honest peer's: when a peer is banned
- `margins`: by how much two honest machines may differ
- `near_duplicates`: completions that repeat another lease's: a reason to look
- `observations`: what a peer's stays and leases come to, day by day
- `outliers`: peers whose figures are unlike the swarm's: a reason to look
- `relay_credit`: which peer is credited for relaying
- `selection_test`: whether a peer delivers selectively
- `unaudited_exposure`: how much is trained on of a peer since its last audit
"""
