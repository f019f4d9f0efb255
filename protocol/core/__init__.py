"""What all messages stand on: names, keys, envelopes, the codec, errors and limits. Nothing here knows a policy version
or a lease.

- `codec`: bytes to messages and back (MessagePack through msgspec)
- `dates`: points in time as text for people
- `digest`: SHA-256 digests, and CIDv1 for chunks
- `envelope`: signed envelopes: who said what, in which swarm
- `errors`: whether a mistake is ours or a peer's, and of which kind
- `genesis`: how a swarm begins, and which keys may speak for it
- `identity`: Ed25519 keys, and the libp2p peer ids that follow from them
- `ids`: the names of things as types, so that a digest is never mistaken for a peer
- `invite`: the one string that a volunteer needs
- `limits`: every bound on what travels, each with its reason
- `pipe`: frames between a node and its child processes
- `visible`: text of strangers, made harmless for terminals and pages
"""
