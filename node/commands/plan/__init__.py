"""`volery plan`: find the machines that a run needs and what they cost, for each staleness window.

A pool and the settings of a swarm become one value (`plan`), by the models of `learner.provisioning`. Text, JSON and
picture are pure functions of that value.

- `answer_text`: the answer in words
- `command`: reads, plans, formats
- `echo2_text`: ECHO-2's rule beside ours
- `inputs`: collects the settings, and where each comes from
- `json_export`: the plan as JSON
- `measured_run`: a recorded run as input
- `measured_run_text`: the measurements of a run, in words
- `plan`: the plan as a value
- `plot`: the plan as a picture
- `pool`: a pool of machines
- `pool_file`: reads a pool from a file
- `pool_keys`: the keys of that file
- `recordings`: finds and reads recordings of runs
- `shown_run`: machines that were enough in a recorded run
- `text`: the whole text, with its tables
"""
