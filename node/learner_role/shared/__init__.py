"""Hold what all services of the learner share: the context, the run's state, and the signals that carry news.

- `context`: identity, ledger, store, clock, events, state and signals, as one value
- `node_troubles`: what a node reports that it cannot do
- `run_state`: the state that all services of a run share and change
- `signals`: the news, and the order in which services get it
- `presence_counts`: the counts of heartbeats, as sums of one presence
- `time_keeper`: measures how the learner spends its time, and records it
"""
