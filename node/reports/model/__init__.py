"""Hold a report as values, before it is written in any form.

- `audits`: results of a peer's audits
- `cost_allocation`: which stretch of time bears which cost
- `costs`: accounts by peer, version, start and day
- `history`: numbers over the course of the run
- `objective_figures`: numbers about training, by name
- `peer_rows`: one row for each peer
- `reach`: how peers are reached, and how they connected
- `report`: the report
- `presences`: when each peer was present
- `time_spread`: spread amounts over stretches of time
- `time_words`: how the learner spent its time, in words and for programs
- `verdict_meanings`: verdicts in words, with advice
"""
