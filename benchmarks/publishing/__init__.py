"""Publication, measured.

- `applied`: what a node takes from a patch's last chunk to files that an engine may load
- `beside`: a learner that publishes every step, beside the same trainer alone
- `gibibyte`: what it costs to publish 1 GiB
"""
