"""Being a relay: joining members that cannot dial each other.

- `carried`: what circuits through us have carried, by pair
- `relay`: grants reservations and circuits, and moves their bytes
- `relay_budget`: how many of them, to whom, and for how long
"""
