"""How nodes behind routers reach each other: libp2p's own protocols, so that others' nodes can be relays and partners.

- `autonat`: whether we can be reached at an address: asked of others, and for others
- `carried`: what circuits through us have carried, by pair
- `circuits`: to peers through a relay, and from peers that reach us through one
- `dial_policy`: which addresses that a stranger named may be dialled
- `hole_punch`: from a circuit to a direct connection (DCUtR)
- `hosting`: what all this needs of the host
- `multiaddrs`: addresses as bytes, as other implementations write them
- `network_watch`: whether this machine slept, or moved to another network
- `observed_addresses`: where others see us
- `reaching`: what is tried, and in which order
- `own_addresses`: our addresses, how each is known, and what came of trying it
- `relay`: joins members that cannot dial each other
- `relay_budget`: which reservations and circuits a relay grants
- `wire`: protobuf messages on a stream
"""
