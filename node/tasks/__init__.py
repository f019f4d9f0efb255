"""Training tasks: prompts, rewards and where they come from. Learner's side only; see `node.tasks.port`."""
