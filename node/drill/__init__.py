"""A drill: a whole learner, honest peers and cheats in one process over a network in memory, to see who is found."""
