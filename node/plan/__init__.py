"""`volery plan`: which machines keep the learner busy, what they cost, for every staleness window.

A pool (`pool`) and what is said of the swarm (`terms`) become one value (`plan`), by the cores in
`learner.provisioning`; text, JSON and picture are pure functions of that value.
"""
