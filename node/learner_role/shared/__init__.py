"""What every service of the learner is given: a context, with the run's state and the signals that tell news.

- `context`: identity, ledger, store, clock, events, state and signals, as one value
- `node_troubles`: what a node says that it cannot do
- `run_state`: what all services of a run share and change
- `signals`: the news, and who hears of it in which order
- `stay_counts`: what heartbeats count, as sums of one stay
- `time_keeper`: measures what the learner's time goes into, and writes it down
"""
