"""Make, read and check files: a written file appears whole or not at all, and sizes are bounded before reading. No
torch.

- `atomic_directory`: write directories that appear whole or not at all
- `checkpoint_retention`: choose which checkpoints to keep: the newest, and milestones
- `chunk_names`: name a directory's chunks, and remember the names of unchanged files
- `config_bounds`: check that a config.json asks for no more layers than its weights hold
- `expert_routing`: how a mixture of experts routes, and the routers of a loaded model
- `file_digests`: hash files in blocks while they are written, or by samples
- `lora_targets`: which layers the names in `lora_targets` select
- `model_digest`: name a model by its contents
- `model_directory`: read a model directory: configuration, weight files, and the files that travel with them
- `model_limits`: how long a sequence may be, and how many token ids there are
- `regular_file`: open files on a disk safely, even if a pipe or device has taken their place
- `text_files`: read text and JSON that people provide
- `version_builder`: turn a model directory into chunks, patches and a signed manifest
- `weight_values`: read values of tensors as numpy arrays
"""
