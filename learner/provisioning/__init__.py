"""How many rollouts per second keep the learner busy, and which machines to ask for them. Pure, no trio, no torch."""
