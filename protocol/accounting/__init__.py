"""What work costs and what it is worth: claims that peers sign, and proofs that others can check offline. A claim about
money or energy is only as good as the peer that signed it.

- `claims`: prices, costs and energy: what peers state and sign, and how far it is believed
- `credit_note`: the learner's signed word on what a relay receipt is worth
- `merkle`: Merkle trees as in RFC 9162: one hash for a list, and proofs of membership
- `relay_receipt`: a rollout node's signed word on which peer gave it which chunks
- `reputation`: a score of a peer, day by day, with its parts laid open
- `reputation_note`: the learner's signed word on a peer, with the observations that it rests on
- `tally`: the learner's signed word on which records a version was trained on
"""
