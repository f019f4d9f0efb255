"""Find out what this machine can do for a swarm, how it is connected, and what to do about that: `volery doctor`.

Pure modules judge the findings and put them into words. `examination` collects them, and `node.commands.doctor` is the
command. The dry runs of both roles use the same modules.

- `announced`: whether a learner's addresses can be dialled from outside
- `clock`: the offset between this machine's clock and the learner's
- `connection`: how this machine is connected, judged from what its router did and which peers could reach it
- `engine_trial`: how many tokens a second its engine generates
- `examination`: collects all findings at once
- `findings`: the findings, as values
- `first_hops`: the first routers on the way to the learner
- `local_network`: this machine's own addresses and routers
- `quota`: whether the versions of a model fit in the store
- `rates`: transfer rates between the learner and this machine
- `router_advice`: what to do at the router
- `settling`: whether more evidence is to be expected
- `stand_in`: a model with a version's shapes and random weights, for trying an engine
- `telling`: all findings for people and for programs
- `verdict`: what the machine can do, and what is missing
"""
