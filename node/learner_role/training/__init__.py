"""Run the training loop, and prepare what a start needs before it.

- `base_model`: checks that the model is the one that the run began with
- `checkpoints`: writes checkpoints, and keeps the newest and milestones
- `episode_player`: plays whole episodes on one engine
- `evaluation`: scores published versions on held-out prompts
- `fixed_settings`: settings that no start may change
- `footprint`: how much memory and disk a run needs
- `learning_rates`: the learning rates that suit a model's size
- `loop`: each training step, and when a version is due
- `publisher`: exports the trainer's state and publishes it as a version
- `restore`: brings the trainer to the state from which a run continues
- `resume`: begins a run with its own checkpoint, or with another run's
- `supervised`: examples as the arrays of a supervised step, and the pace of a warm start
- `tiny_model`: makes a small model on the spot
- `trainer_process`: the trainer as a child process
- `warm_start`: teaches a small model a little before reinforcement learning
"""
