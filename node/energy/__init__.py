"""Measure the energy that this machine draws from the mains while it is lent, and how busy it is.

Meters are read, or the draw of devices is estimated, and each figure says which. The time in which the owner uses the
machine never counts. A node without any meter works like one with a meter.

- `machine_load`: measures processor, memory and GPUs for people
- `meter`: core: turns readings into joules by source
- `meter_selection`: decides which devices count, and how they are read
- `monitor`: reads the meters while the node runs
- `nvml`: reads NVIDIA's GPUs
- `rapl`: reads the processors' own counters
- `typical_power`: power of devices that have no meter
"""
