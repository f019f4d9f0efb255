"""A port of the home router for this node, so that others can dial it. Enter through `port_mapper.PortMapper`.

- `announcements`: routers that tell the whole link that they have started anew
- `datagram_ways`: PCP and NAT-PMP, asked for one port
- `epoch`: whether a gateway has forgotten its mappings
- `gateway_client`: requests and answers over one UDP socket a gateway
- `gateways`: which routers lead out of this machine's networks
- `keeper`: one port at one gateway, asked for by every protocol
- `lease`: the life of one mapping, from the first request until it is given back
- `nat_pmp`: the datagrams of NAT-PMP (RFC 6886)
- `outcomes`: what a gateway may answer
- `pcp`: the datagrams of PCP (RFC 6887)
- `port_mapper`: asks every gateway for every port, and keeps what it gets
- `ssdp`: finds the gateway's UPnP description
- `upnp`: UPnP, asked for one port
- `upnp_worker`: the program that speaks UPnP, in a process that can be killed
"""
