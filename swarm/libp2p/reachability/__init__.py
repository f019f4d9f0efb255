"""How nodes behind routers reach each other: libp2p's own protocols, so that others' nodes can be relays and partners.

- `autonat`: whether we can be reached at an address: asked of others, and for others
- `circuits`: to peers through a relay, and from peers that reach us through one
- `dial_policy`: which addresses that a stranger named may be dialled
- `hole_punch`: from a circuit to a direct connection (DCUtR)
- `hosting`: what all this needs of the host
- `inquiries`: what a peer is asked on a connection
- `meetings`: from a circuit to a direct connection
- `multiaddrs`: addresses as bytes, as other implementations write them
- `network_watch`: whether this machine slept, or moved to another network
- `observed_addresses`: where others see us
- `own_addresses`: our addresses, how each is known, and what came of trying it
- `own_reach`: how this node is reached, as far as others say
- `reaching`: who does what, and when
- `relaying`: being a relay for others
- `wire`: protobuf messages on a stream
"""
