"""Provide the basis of all messages: names, keys, envelopes, the codec, errors and limits.

Nothing here knows what a policy version or a lease contains.

- `codec`: bytes to messages and back (MessagePack through msgspec)
- `dates`: points in time as text for people
- `digest`: SHA-256 digests, and CIDv1 for chunks
- `envelope`: signed envelopes: which key signed which message, in which swarm
- `errors`: whether an error is ours or a peer's, and of which kind
- `genesis`: how a swarm begins, and which keys may sign for it
- `identity`: Ed25519 keys, and the libp2p peer ids that follow from them
- `ids`: names as types, so that a digest is never mistaken for a peer
- `invite`: the text that a volunteer needs to join
- `limits`: the bounds of all messages, each with its reason
- `pipe`: frames between a node and its child processes
- `visible`: text from peers, made harmless for terminals and pages
"""
