"""Let nodes behind routers reach each other, by libp2p's own protocols, so that other programs' nodes can take part.

- `autonat`: finds out whether we can be reached at an address, and helps others to find out
- `circuits`: connections to peers through a relay, and from peers that reach us through one
- `dial_policy`: which addresses that a stranger named may be dialled
- `hole_punch`: turns a circuit into a direct connection by hole punching (DCUtR)
- `hosting`: the parts of the host that all this uses
- `inquiries`: the questions that we ask a peer on a connection
- `meetings`: turns a circuit into a direct connection in any way that works
- `multiaddrs`: addresses as bytes, as other implementations write them
- `network_watch`: notices that this machine slept, or moved to another network
- `observed_addresses`: where others see us
- `own_addresses`: our addresses, how each is known, and the result of trying it
- `own_reach`: how this node is reached, as far as others say
- `reaching`: runs all this: which part acts when
- `relaying`: acts as a relay for others
- `wire`: protobuf messages on a stream
"""
