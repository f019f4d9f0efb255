"""A report as values: what there is to say, before anybody says it.

- `audits`: what audits found of a peer
- `cost_allocation`: which stretch of time bears which cost
- `costs`: accounts by peer, version, start and day
- `history`: figures over the run
- `objective_figures`: figures of training, by name
- `peer_rows`: one row for each peer
- `reach`: how peers are reached, and how they met
- `report`: the report
- `stays`: when each peer was here
- `time_spread`: what falls on which stretch of time
- `time_words`: what a learner's time went into, in words and for programs
- `verdict_meanings`: verdicts in words, with advice
"""
