"""Random swarms, simulated and predicted, and provisioned by either rule."""
