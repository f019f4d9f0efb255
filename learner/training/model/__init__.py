"""The policy as a model: built from a directory, scored, and written out again. Architectures of transformers are
handled in one place each.

- `causality_check`: what a model's logits depend on, by changing what they must not depend on
- `export`: the policy written out as a model directory
- `loading`: models from a directory of weights, or new ones with random weights
- `lora`: low-rank adapters
- `merging`: an adapter added into its base model's weights
- `policy`: a causal language model with float32 weights that scores sequences
- `router_replay`: tokens sent through the experts that an engine chose for them
- `tensor_mapping`: which tensors of a directory are which of a model
- `varlen_attention`: attention over sequences that lie end to end
- `weight_writer`: weight files written piece by piece on all cores
"""
