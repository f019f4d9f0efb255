"""Engines: what turns a prompt, a seed and a policy version into tokens and their log probabilities. An engine's
library lives in a worker, a child process; nothing here imports torch.

- `cheating`: an engine that cheats, for drills
- `common_worker`: what all workers share
- `conformance`: what every engine must do
- `factory`: from a configuration to an engine
- `fake`: an engine without a model
- `interface`: the port
- `lease_requests`: a lease as requests to an engine
- `probe_check`: whether an engine runs the version that it was told to load
- `selection`: which engine a node takes, and why
- `teacher_scores`: what a teacher says of whole groups
- `throughput`: how fast an engine is
- `transformers`: the engine on transformers
- `transformers_worker`: its worker
- `vllm`: the engine on vLLM
- `vllm_install`: the environment in which vLLM lives
- `vllm_worker`: its worker
- `weight_format`: what `quantization = "auto"` comes to: the best format that the swarm takes and that fits
- `worker_engine`: an engine whose weights live in a worker
"""
