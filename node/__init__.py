"""The application: one program, `volery`, that plays the rollout role or the learner role.

This package composes `swarm`, `learner` and `protocol`. Its process never imports torch or vllm; generation and
training are child processes (`node.processes`). A room imports only rooms further down this list.

- `cli`: the command line: options, and which function each command calls
- `commands`: all that is no role: chat, demo, doctor, drill, export, init, plan, samples, serve,
  simulate, statements
- `learner_role`: the learner: sessions with peers, training, trust, metrics
- `rollout_role`: the rollout node: work, versions, its owner's wishes
- `doctor`: how this machine is connected, and what it can do for a swarm
- `ui`: the live view in a terminal
- `serving`: a model in service, for people and programs that speak with it
- `verifiers`: where rewards are computed: here, or in processes of their own
- `reports`: what people read about a run
- `engine`: what turns a prompt, a seed and a version into tokens
- `network`: this machine as others find it, and how others are found
- `tasks`: prompts, rewards, and where they come from
- `energy`: what this machine takes from the mains
- `state`: state directories, keys, receipts
- `config`: the configuration files, checked
- `processes`: child processes
- `runtime`: errors, events, shutdown, files, standard output
"""
