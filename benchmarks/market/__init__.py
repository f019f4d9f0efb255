"""Pools of machines whose prices, rates and presence change, and those who choose among them."""
