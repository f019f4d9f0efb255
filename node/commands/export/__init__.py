"""`volery export`: one version as a model directory with a card, as a GGUF file, and pushed to a repository.

- `adapters`: low-rank adapters merged into their model, or alone as peft takes them
- `base_model`: what is known of the model that a run began with: its name and licence
- `card`: the model card, in Markdown with the hub's front matter
- `card_facts`: what a card tells of a run, as values
- `command`: finds the version, writes its files, a card and a record, and pushes them
- `gguf_file`: one GGUF file, for llama.cpp
- `gguf_model`: what such a file says of an architecture, and how its tensors lie
- `gguf_tokenizer`: what such a file says of a tokenizer
- `push`: where a push goes, and what it needs
- `push_directory`: a push to a directory that stands for a repository
- `push_hub`: a push to Hugging Face's hub
- `record`: what an export says of itself, and what a push may replace
- `run_story`: what the ledger and the configuration say of the run
- `version_choice`: which version is meant
- `version_files`: the files of a version, from the store or made again of a checkpoint
"""
