"""Sessions with peers: who joins, what they deliver, what they are owed.

- `forgotten_versions`: versions that this learner gave away and its ledger does not know
- `greetings`: what every greeting is judged by
- `intake`: deliveries, from the inbox to a verdict
- `introducer`: tells peers who their neighbours are
- `introductions`: whom a peer can meet, and where it is told that another is
- `join_terms`: what a peer that joins is told
- `proof_service`: proofs that records were trained on
- `relay_credits`: credit for relaying
- `session_service`: who comes and goes
"""
