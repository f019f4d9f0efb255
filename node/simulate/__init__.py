"""A swarm in virtual time: the cores that run a learner, and machines that are only figures."""
