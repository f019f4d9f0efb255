"""`volery plan`: which machines a run needs and what they cost, for each staleness window. A pool and what is said of
the swarm become one value (`plan`), by the cores of `learner.provisioning`; text, JSON and picture are pure functions
of that value.

- `answer_text`: the answer in words
- `command`: reads, plans, prints
- `echo2_text`: ECHO-2's rule beside ours
- `inputs`: what is given, and where it comes from
- `json_export`: as JSON
- `measured_run`: a recorded run as input
- `measured_run_text`: what was measured, in words
- `plan`: the plan as a value
- `plot`: as a picture
- `pool`: a pool of machines
- `pool_file`: a pool from a file
- `pool_keys`: keys of that file
- `recordings`: recordings of runs
- `shown_run`: machines that a recorded run showed to be enough
- `text`: the whole text, with its tables
"""
