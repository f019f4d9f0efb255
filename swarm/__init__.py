"""Move bytes among peers: policy versions to every node, and work between the learner and the rollout nodes.

Pure cores decide, thin trio drivers act, and only `swarm.libp2p` knows libp2p. This package never imports `learner`;
both import only `protocol`.

- `versions`: keeps a node at the newest version: announcements, manifests, and the cheapest way to fetch
- `transfer`: moves the chunks of a version: which chunk to request next, and which request to answer next
- `work`: the streams of leases, deliveries and heartbeats, and the learner's table of members
- `store`: the content-addressed directory in which a node keeps versions
- `transport`: the interface through which all of this reaches other peers
- `libp2p`: that interface, implemented with libp2p
- `testing`: that interface in memory, and the checks that every transport must pass
"""
