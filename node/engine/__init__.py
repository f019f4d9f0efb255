"""Turn a prompt, a seed and a policy version into tokens and their log probabilities. An engine's library runs in a
worker, which is a child process; nothing here imports torch.

- `cheating`: an engine that cheats, for drills
- `common_worker`: what all workers share
- `conformance`: checks that every engine must pass
- `factory`: open the engine that the configuration names
- `fake`: an engine without a model
- `interface`: the interface that every engine has
- `lease_requests`: a lease as requests to an engine, and completions as records
- `probe_check`: whether an engine loaded the version that it was given
- `selection`: which engine a node uses, and why
- `teacher_scores`: a teacher's log probabilities of whole groups
- `throughput`: how fast an engine is
- `transformers`: the engine on transformers
- `transformers_worker`: the worker of the transformers engine
- `vllm`: the engine on vLLM
- `vllm_install`: build the environment in which vLLM runs
- `vllm_worker`: the worker of the vLLM engine
- `weight_format`: the format that `quantization = "auto"` selects: the best one that the swarm admits and that fits
- `worker_engine`: an engine whose weights are in a worker
"""
