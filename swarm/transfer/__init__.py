"""Moves the chunks of a version between peers, in a pipeline: a peer passes on what it has while it fetches the rest.
Cores decide which chunk is asked of which peer and whose request is answered next.

- `audience`: what the serving side knows of a version that this node fetches or seeds
- `chunk_cache`: chunks stored a moment ago, still in memory
- `chunk_picker`: which chunk is asked of which peer next: rarest first, in bounded windows
- `chunk_server`: the chunks that other peers request
- `disk_turns`: where the disk is asked: small chunks in the turn in which they come, large ones in a thread
- `exchange`: fetches one version at a time, and seeds the versions that begin here
- `fetch`: one version on its way here
- `link`: the conversation with one peer
- `question_rates`: how often a peer may ask
- `seed`: one version on its way out, of which this node is the source
- `serving`: answers other peers' questions
- `super_seeding`: to which peer the source gives each chunk first
- `upload_queue`: whose request is answered next
"""
