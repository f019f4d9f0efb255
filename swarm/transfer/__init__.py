"""Move the chunks of a version between peers in a pipeline: a peer relays the chunks it has while it fetches the rest.

Pure cores decide which chunk to request from which peer, and which request to answer next.

- `audience`: what the serving side knows of a version that this node fetches or seeds
- `chunk_cache`: chunks stored a moment ago, still in memory
- `chunk_picker`: decides which chunk to request from which peer: rarest first, in bounded windows
- `chunk_server`: answers other peers' requests for chunks
- `disk_turns`: decides where the disk is used: at once for small chunks, in a thread for large ones
- `exchange`: fetches one version at a time, and seeds the versions that begin here
- `fetch`: one version that this node fetches
- `link`: the conversation with one peer
- `question_rates`: limits how often a peer may ask
- `seed`: one version that this node seeds as its source
- `serving`: answers other peers' questions
- `super_seeding`: decides to which peer the source gives each chunk first
- `upload_queue`: decides which request is answered next
"""
