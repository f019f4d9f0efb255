"""What this machine takes from the mains while it is lent. Meters are read, or devices estimated, and each figure says
which. What the machine does while its owner has it for himself never enters the sums; a node without any meter works as
one with.

- `meter`: core: from readings to joules by source
- `meter_selection`: which devices count
- `monitor`: keeps reading
- `nvml`: NVIDIA's GPUs
- `rapl`: the processors' own counters
- `typical_power`: what devices take that have no meter
"""
