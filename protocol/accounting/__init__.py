"""Account for work: claims that peers sign, and proofs that others can check offline.

A claim about money or energy is only as good as the peer that signed it.

- `claims`: prices, costs and energy: what peers state and sign, and how far it is believed
- `credit_note`: the learner's signed statement of the bytes that a relay receipt is credited with
- `merkle`: Merkle trees as in RFC 9162: one hash for a list, and proofs of membership
- `rank`: a peer's place among all, by admitted rollouts, for people
- `relay_receipt`: a rollout node's signed statement of which peer gave it which chunks
- `reputation`: a peer's score and its parts, from daily observations
- `reputation_note`: the learner's signed statement about a peer, with the observations behind it
- `tally`: the learner's signed statement of the records that a version was trained on
"""
