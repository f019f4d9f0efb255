"""How a policy version is named, cut into chunks, announced and asked for. The bytes themselves are `swarm`'s matter.

- `announcement`: the newest version's name, as gossip carries it
- `chunking`: model files cut into chunks, and put together again
- `exchange`: HAVE, REQUEST, CHUNK, CANCEL, BUSY, and the questions that repair gossip
- `formats`: in which number format an engine holds the weights: the names, and how they are said
- `manifest`: the signed list that names one policy version
- `manifest_pieces`: a manifest that is too long for one answer
- `probe`: a few tokens and their logprobs, by which a node checks that its engine runs the version
- `safetensors_header`: the table at the head of a safetensors file
- `staleness`: the lag of a rollout, and whether it may still be trained on
"""
