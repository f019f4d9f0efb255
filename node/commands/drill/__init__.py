"""`volery drill`: honest peers and cheats in one process, and whether the cheats are found.

- `attacks`: what cheats do
- `behaviours`: what a peer does with a lease
- `command`: runs it
- `peer`: one peer
- `relays`: relays that lie
- `results`: what was found
- `roster`: which peers there are
- `shared_engine`: one engine for all
- `swarm`: the swarm of a drill
- `tampered_weights`: weights that are not the version's
- `text`: what is printed
"""
