"""Pools of machines whose prices, rates and presence change, and the loops that choose among them."""
