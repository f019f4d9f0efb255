"""Act as a relay: join members that cannot dial each other.

- `carried`: counts what circuits through us have carried, by pair of peers
- `relay`: grants reservations and circuits, and moves their bytes
- `relay_budget`: how many of them, to which peers, and for how long
"""
