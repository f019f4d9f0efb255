"""`volery export`: write one version as a model directory with a card, or as a GGUF file, and push it to a repository.

- `adapters`: merges low-rank adapters into their model, or writes them alone as peft reads them
- `base_model`: finds the name and the licence of the model that a run began with
- `card`: writes the model card, in Markdown with the hub's front matter
- `card_facts`: collects what a card tells about a run, as values
- `command`: finds the version, writes its files, a card and a record, and pushes them
- `gguf_file`: writes one GGUF file, for llama.cpp
- `gguf_model`: describes an architecture and the order of its tensors for such a file
- `gguf_tokenizer`: describes a tokenizer for such a file
- `push`: decides where a push goes, and what it needs
- `push_directory`: pushes to a directory that stands for a repository
- `push_hub`: pushes to Hugging Face's hub
- `record`: lists the files of an export, and decides what a push may replace
- `run_story`: reads what the ledger and the configuration say about the run
- `version_choice`: chooses the version
- `version_files`: writes the files of a version, from the store or from a checkpoint
"""
