"""Get a port of the home router for this node, so that others can dial it. Enter through `port_mapper.PortMapper`.

- `announcements`: hears routers that tell their whole network that they have restarted
- `datagram_ways`: asks for one port by PCP or NAT-PMP
- `epoch`: decides whether a gateway has forgotten its mappings
- `gateway_client`: sends requests and receives answers over one UDP socket for each gateway
- `gateways`: finds the routers that lead out of this machine's networks
- `keeper`: keeps one port mapped at one gateway, by any of the protocols
- `lease`: the life of one mapping, from the first request until it is given back
- `nat_pmp`: the datagrams of NAT-PMP (RFC 6886)
- `outcomes`: the answers that a gateway may give
- `pcp`: the datagrams of PCP (RFC 6887)
- `port_mapper`: asks every gateway for every port, and keeps what it gets
- `ssdp`: finds the gateway's UPnP description
- `upnp`: asks for one port by UPnP
- `upnp_worker`: the program that speaks UPnP, in a process that can be killed
"""
