"""The trainer: a child process that holds the policy and its optimizer. torch is imported here and nowhere else in
`learner`, and nothing in `node` or `swarm` imports this.

- `background_writing`: exports and checkpoints written beside training
- `batch_preparation`: from a batch as it came to one that is ready for updates
- `batches`: sequences, packed under a memory budget
- `checkpoint`: the trainer's durable state
- `dcp_storage`: storage for torch.distributed.checkpoint without pickle
- `distributed`: ranks, sharding, several machines
- `model`: the policy: loaded, scored, exported
- `objective`: the loss
- `optimizer`: AdamW and its schedule
- `probe`: the tokens of a version's probe
- `reference_policy`: a copy of the weights, for a KL penalty and DPO
- `server`: the program: reads requests, answers them
- `snapshot`: tensors as they were at one moment, read while training goes on
- `train_state`: a loaded policy in training: weights, optimizers, counters
- `value_head`: a critic, for PPO
"""
