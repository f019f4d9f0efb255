"""Serve the learner's peers: sessions, deliveries, introductions, proofs and credits.

- `forgotten_versions`: published versions that the ledger does not know
- `greetings`: the checks that every greeting must pass
- `intake`: deliveries, from the inbox to a verdict
- `introducer`: tells peers who their neighbours are
- `introductions`: which peers can meet, and at which addresses
- `join_terms`: the terms that a peer gets before it joins
- `proof_service`: proofs that records were trained on
- `relay_credits`: credit for relaying
- `session_service`: which peers join, stay and leave
"""
