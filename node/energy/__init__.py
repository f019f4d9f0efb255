"""What this machine takes of the mains while it is lent.

`meter.py` adds up what looks at devices show (core), `rapl.py` and `nvml.py` look, `typical.py` knows what devices take
that have no meter, `choice.py` says which of these count here, `watch.py` keeps looking. What always holds: what the
machine does while its owner has it for himself is never read into the sums; a node without any meter works as one with.
"""
