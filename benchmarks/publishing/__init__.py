"""Publication, measured: beside the training of a swarm's learner, and by itself."""
