"""`volery simulate`: run a swarm in virtual time, and show what changes would do.

- `command`: reads, simulates, formats
- `json_export`: the answer as JSON
- `options`: options and modes
- `overrides`: changed settings of a recorded swarm
- `pool_machines`: the machines of a pool
- `recorded_machines`: the machines of a recording
- `recorded_swarm`: a recording as a swarm
- `result`: one simulation as a value
- `scenario`: the swarm, and what is asked about it
- `text`: the answer in words and tables
- `timeline_plot`: the answer as a picture
"""
