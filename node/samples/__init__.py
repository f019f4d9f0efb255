"""Samples of what a policy was trained on: kept by the learner (`kept`, `store`), shown by `volery show`."""
