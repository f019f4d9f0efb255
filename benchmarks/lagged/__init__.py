"""What the study of staleness is made of: small swarms without a network, whose rollouts are S steps old, exactly."""
