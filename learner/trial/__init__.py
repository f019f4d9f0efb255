"""What is tried before anybody joins: completions short enough for seconds, and whether engine, audit and trainer give
their tokens the same log probabilities.

- `completion_lengths`: which completions reach where a model may compute otherwise
- `logprob_agreement`: whether several programs agree on the log probabilities of one completion
"""
