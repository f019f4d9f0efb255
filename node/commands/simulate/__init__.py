"""`volery simulate`: a swarm in virtual time, and what would change it.

- `command`: reads, simulates, prints
- `json_export`: as JSON
- `options`: options and modes
- `overrides`: figures that are changed
- `pool_machines`: machines of a pool
- `recorded_machines`: machines of a recording
- `recorded_swarm`: a recording as a swarm
- `result`: what came of it
- `scenario`: what is asked
- `text`: the text
- `timeline_plot`: as a picture
"""
