"""Bytes among peers: policy versions to everybody, work between learner and rollout nodes.

Pure cores decide, thin trio drivers perform, and only `swarm.libp2p` knows libp2p. This package never meets `learner`;
both know `protocol` alone.

- `versions`: keeps a node at the newest version: announcements, manifests, the cheapest way to fetch
- `transfer`: moves the chunks of a version: which chunk is asked next, whose request is answered next
- `work`: the streams of leases, deliveries and heartbeats, and the learner's table of members
- `store`: the content-addressed directory in which versions lie
- `transport`: the port through which all this reaches other peers
- `libp2p`: that port on libp2p
- `testing`: that port in memory, and checks that every transport passes
"""
