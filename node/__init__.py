"""The application: one program, `volery`, that plays the rollout role or the learner role.

This package composes `swarm`, `learner` and `protocol`. Its process never imports torch or vllm; generation and
training are child processes (`node.processes`). A room imports only rooms further down this list.

- `cli`: the command line: options, and which function each command calls
- `commands`: commands that run neither role: chat, compact, demo, doctor, drill, export, init, new, notify, page, plan,
  samples, serve, simulate, statements, tasks, warmup
- `learner_role`: the learner: sessions with peers, training, trust, metrics
- `rollout_role`: the rollout node: leases, versions, and what its owner orders
- `doctor`: how this machine is connected, and what it can do for a swarm
- `web`: offer a live page for browsers
- `ui`: the live view in a terminal
- `serving`: load a version and answer people and programs with it
- `verifiers`: compute rewards, in this process or in processes of their own
- `reports`: what people read about a run
- `engine`: turn a prompt, a seed and a version into tokens
- `network`: how this machine finds other nodes, and how they find it
- `notices`: post what happened to a person's phone, chat or program
- `tasks`: prompts, rewards, and where they come from
- `energy`: measure the energy that this machine takes from the mains
- `state`: state directories, keys, receipts
- `config`: the configuration files, checked
- `processes`: child processes
- `installation`: how the program was installed, and which line adds what it lacks
- `runtime`: errors, events, shutdown, files, standard output
"""
