"""`volery drill`: let honest peers and cheats play in one process, and report whether the cheats are found.

- `attacks`: the attacks, and what each is after
- `behaviours`: how a peer answers a lease, honestly or by each attack
- `command`: runs the drill
- `peer`: one peer
- `relays`: relays that lie
- `results`: reads from the ledger what was found
- `roster`: decides which peers play when
- `shared_engine`: one engine for all peers
- `swarm`: the learner and the peers of a drill
- `tampered_weights`: weights that differ from the version's
- `text`: prints the results
"""
