"""Make this machine reachable for other peers, and find them.

- `budget_reports`: reports what the budgets for strangers and members refused
- `dial_plan`: decides which of the introduced peers to dial, and when
- `first_contact`: dials until a node answers, and checks that it belongs to the invite's swarm
- `introductions`: connects to the peers that the learner introduces
- `invites`: writes the invite of a learner, or shows it again
- `known_members`: remembers over a restart from which networks members came
- `newcomer`: asks what anybody with an invite may learn of a swarm without joining it
- `reach_words`: tells how a node is reached, in a sentence
- `swarm_peer`: what every member does for the others
- `traffic_growth`: decides when the traffic is told again
- `transport`: opens the libp2p transport of this node
"""
