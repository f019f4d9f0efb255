"""What peers say to each other, and the rules that both ends must compute alike.

Nothing here opens a file or a socket, asks for the time, or knows trio, torch or libp2p. Every function is a function
of its arguments, so two implementations that agree on `docs/protocol.md` agree on every result.

- `work`: leases, records, verdicts and receipts: what a rollout node and the learner say about work
- `experts`: which experts of a mixture made each token, as a record carries them
- `scores`: what a teacher node and the learner say about scores
- `trouble`: what a rollout node cannot do, as it tells the learner in each heartbeat
- `reach`: how a rollout node is reached, as it tells the learner
- `sampling`: the seeded sampler; engine workers load this file by its path
- `accounting`: costs, energy, relay receipts, credit notes, reputation: claims about work, and proofs
- `patches`: the exact difference between two versions
- `versions`: manifests, chunks, announcements: how a policy version is named, cut and asked for
- `core`: identities, envelopes, the codec, errors and limits, on which all messages stand
"""
