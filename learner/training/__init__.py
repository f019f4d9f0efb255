"""Train the policy in a child process. In `learner` only this package imports torch; nothing in `node` or `swarm`
imports it.

- `background_writing`: write exports and checkpoints while training goes on
- `batch_preparation`: compute advantages and first passes, so that a batch is ready for updates
- `batches`: sequences, packed under a memory budget
- `checkpoint`: the trainer's durable state
- `dcp_storage`: storage for torch.distributed.checkpoint without pickle
- `distributed`: ranks, sharding, several machines
- `model`: the policy: loaded, scored, exported
- `objective`: the loss
- `optimizer`: AdamW and its schedule
- `probe`: the tokens of a version's probe
- `reference_policy`: a copy of the weights, for a KL penalty and DPO
- `server`: the program: read requests and reply to them
- `snapshot`: tensors as they were at one moment, read while training goes on
- `train_state`: a loaded policy in training: weights, optimizers, counters
- `value_head`: a critic, for PPO
"""
