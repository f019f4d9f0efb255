"""The training loop, and what a start needs before it.

- `base_model`: the model that a run begins with
- `checkpoints`: which are kept, and milestones
- `episode_player`: whole episodes on one engine
- `evaluation`: held-out prompts, scored
- `fixed_settings`: settings that no start may change
- `footprint`: how much memory and disk a run takes
- `loop`: each training step, and when a version is due
- `publisher`: what the trainer made becomes a version that peers hear of
- `restore`: brings the trainer to where a run goes on from
- `resume`: begins a run with another's checkpoint
- `supervised`: examples as the arrays of a supervised step, and how fast to go on
- `tiny_model`: a small model made on the spot
- `trainer_process`: the trainer as a child process
- `warm_start`: a small model that knows a little
"""
