"""Publication, measured.

- `applied`: a node's time from a patch's last chunk to files that an engine may load
- `beside`: a learner that publishes every step, beside the same trainer alone
- `gibibyte`: the cost of publishing 1 GiB
"""
