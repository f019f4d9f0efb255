"""Serve a model to people and programs: `volery serve` and `volery chat`.

Versions come from a model directory, or from the store of a learner or node, which may be running. An engine of this
process loads them. Nothing here connects to the swarm.

- `completion`: one completion, as pieces of text while it is generated
- `incremental_text`: tokens as text, without splitting a character
- `kept_versions`: keep the files of a served version, even if its store evicts it
- `opening`: from a target on the command line to a served model
- `prompts`: a conversation as token ids
- `rounds`: spans of many completions, generated together
- `served_model`: an engine, the version that it has loaded, and its replacement by a newer one
- `sources`: a model directory, or the versions in a store
- `spans`: the spans of a completion, and their seeds
- `stop_texts`: strings that end a text
"""
