"""Pictures of a run, as PNG.

- `activity_strip`: which peers were active when
- `objective_strip`: figures of training
- `png`: a picture, written
- `run_plot`: the run in one picture
"""
