"""Define and read the configuration files: an operator's swarm.toml and a volunteer's node.toml.

A mistake in a file is reported before anything is created, with the file, the key and the next step.

- `common`: types that both files share
- `conflicts`: combinations of keys that cannot work
- `daily_hours`: hours of the day in which a node may work
- `engine_requirements`: what an operator requires of engines, as learner and node understand it
- `error_messages`: what is wrong with a file, in a sentence
- `invite_text`: finds an invite in a text that was typed or pasted, or in a file
- `live_limits`: limits that change while a node runs
- `loader`: reads and checks a file
- `node_config`: the volunteer's file
- `preflight`: checks before a start, while nothing has been created
- `reference`: a file that explains itself, made from the description of each key
- `renamed_keys`: names that keys had in the release before
- `services`: judges and reward services, in the form that tasks read
- `swarm_config`: the operator's file
- `unused_keys`: keys that have no effect because of other keys
"""
