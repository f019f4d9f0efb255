"""Try a model before any node joins: do engine, audit and trainer agree on the log probabilities of short completions?

- `completion_lengths`: which completions reach positions at which a model may compute in another way
- `logprob_agreement`: whether several programs agree on the log probabilities of one completion
"""
