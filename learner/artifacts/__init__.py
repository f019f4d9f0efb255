"""Files that are made, read and checked. What is written here appears whole or not at all, and what is read is bounded
first. No torch.

- `atomic_directory`: directories that appear whole or not at all
- `checkpoint_retention`: which checkpoints stay: the newest, and milestones
- `chunk_names`: names of a directory's chunks, remembered for files that stay as they are
- `config_bounds`: a config.json asks for no more than its weights hold
- `expert_routing`: how a mixture of experts routes, and the routers of a loaded model
- `file_digests`: files hashed in blocks while they are written, or by samples
- `lora_targets`: which layers the names in `lora_targets` mean
- `model_digest`: what a model is called by its contents
- `model_directory`: a model directory: configuration, weight files, and what travels with them
- `model_limits`: how long a sequence may be, and how many token ids there are
- `regular_file`: opens files on a disk, whatever has become of them
- `text_files`: text and JSON that people hand in
- `version_builder`: a model directory becomes chunks, patches and a signed manifest
- `weight_values`: values of tensors as numpy arrays
"""
