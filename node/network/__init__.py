"""This machine as others find it, and how it finds others.

- `budget_reports`: what the budgets for strangers and members refused
- `dial_plan`: which of the introduced peers are dialled, and when
- `first_contact`: dials until somebody answers, and checks that it speaks for the invite's swarm
- `introductions`: meets the peers that the learner introduces
- `invites`: the invite of a learner, shown once more
- `known_members`: where members came from, kept over a restart
- `newcomer`: what anybody who holds an invite may learn of a swarm without joining it
- `reach_words`: how a node is reached, in a sentence
- `swarm_peer`: what every member does for the others
- `transport`: the libp2p transport of this node
"""
