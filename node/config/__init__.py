"""The configuration files: swarm.toml of an operator, node.toml of a volunteer. A mistake is told with its file, its
key and the next step, before anything is made.

- `common`: types that both files share
- `conflicts`: what in a file cannot both be
- `daily_hours`: hours of the day in which a node may work
- `engine_requirements`: what an operator requires of engines, as both ends read it
- `error_messages`: what is wrong with a file, in a sentence
- `invite_text`: an invite in what somebody typed, pasted or keeps in a file
- `loader`: reads a file
- `node_config`: the volunteer's file
- `preflight`: what a start needs, found before anything is made
- `reference`: a file that explains itself, made of what is said of each key
- `renamed_keys`: names of the release before
- `services`: judges and reward services, as a task reads of them
- `swarm_config`: the operator's file
- `unused_keys`: keys that the rest of the file makes idle
"""
