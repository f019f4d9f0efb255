"""What this machine can do for a swarm, how it is connected, and what to do about that: `volery doctor`.

Pure cores judge findings and put them into words; `examination` finds out, and `node.commands.doctor` is its command.
The dry runs of both roles use the same.

- `announced`: whether a learner's addresses can be dialled from outside
- `clock`: how far this machine's clock is from the learner's
- `connection`: how this machine is connected, from what its router did and whom others could reach
- `engine_trial`: how many tokens a second its engine makes
- `examination`: finds everything out, all parts at once
- `findings`: what was found out, as values
- `first_hops`: the first routers on the way to the learner
- `local_network`: this machine's own addresses and routers
- `quota`: whether the versions of a model fit
- `rates`: how fast bytes travel between the learner and this machine
- `router_advice`: what to do at the router
- `settling`: whether more is to be expected
- `stand_in`: a model of a version's shapes, for an engine to be tried with
- `telling`: all of it for people and for programs
- `verdict`: what the machine can do, and what is missing
"""
