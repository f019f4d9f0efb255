"""Name a policy version, cut it into chunks, announce and request it. The package `swarm` moves the bytes.

- `announcement`: the newest version's name, as gossip carries it
- `chunking`: model files cut into chunks, and put together again
- `exchange`: HAVE, REQUEST, CHUNK, CANCEL, BUSY, and the questions that repair gossip
- `formats`: the number formats in which engines hold weights, and how messages name them
- `manifest`: the signed list of one policy version's files and chunks
- `manifest_pieces`: a manifest that is too long for one answer
- `probe`: a few tokens and their logprobs, with which a node checks that its engine runs the version
- `safetensors_header`: the table at the head of a safetensors file
- `staleness`: the lag of a rollout, and whether it may still be trained on
"""
