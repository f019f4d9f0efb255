"""A model in service, for people and programs that speak with it: `volery serve` and `volery chat`.

Versions come from a model directory, or from the store of a learner or node, which may be at work. An engine of this
process loads them. Nothing here speaks to the swarm.

- `completion`: one completion, as pieces of text while it is generated
- `incremental_text`: tokens as text, without splitting a character
- `kept_versions`: the files of a version that is served, whatever its store evicts
- `opening`: from a target on the command line to a model in service
- `prompts`: a conversation as token ids
- `rounds`: spans of many completions, generated together
- `served_model`: an engine and the version that it has loaded, and how a newer one takes its place
- `sources`: a model directory, or the versions in a store
- `spans`: the spans of a completion, and their seeds
- `stop_texts`: strings that end a text
"""
