"""This machine as others find it, and how it finds others.

- `budget_reports`: what the budgets for strangers and members refused
- `find_swarm`: dials until somebody of the swarm answers
- `first_contact`: whether the node at an invite's address speaks for its swarm
- `introductions`: which peers are named to a peer as neighbours
- `invites`: invites, read and shown
- `known_members`: where members came from, kept over a restart
- `transport`: the libp2p transport of this node
"""
