"""Define the messages that nodes exchange, and the rules that both ends must compute alike.

Nothing here opens a file or a socket, reads a clock, or knows trio, torch or libp2p. Each result depends on the
arguments alone, so two implementations that agree on `docs/reference/protocol.md` agree on every result.

- `work`: leases, records, verdicts and receipts, between a rollout node and the learner
- `experts`: which experts of a mixture processed each token, as a record carries them
- `scores`: score leases and score records, between a teacher node and the learner
- `trouble`: what a rollout node cannot do, reported in each heartbeat
- `reach`: how a rollout node can be reached, as it reports to the learner
- `sampling`: the seeded sampler; engine workers load this file by its path
- `accounting`: costs, energy, relay receipts, credit notes, reputation: claims about work, and proofs
- `patches`: the exact difference between two versions
- `versions`: manifests, chunks and announcements: how a policy version is named, cut into chunks and requested
- `core`: identities, envelopes, the codec, errors and limits, which all messages use
"""
