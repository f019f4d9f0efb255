"""Parts of the study of staleness: small swarms without a network, whose rollouts are exactly S steps old."""
