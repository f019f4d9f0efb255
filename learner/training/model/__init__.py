"""Build the policy's model from a directory, score sequences with it, and write it out again. Architectures of
transformers are handled in one place each.

- `causality_check`: test that logits do not depend on tokens that they must not depend on
- `export`: write the policy as a model directory
- `loading`: load models from a directory of weights, or make new ones with random weights
- `lora`: low-rank adapters
- `merging`: add an adapter into its base model's weights
- `policy`: a causal language model with float32 weights that scores sequences
- `router_replay`: send tokens through the experts that an engine chose for them
- `tensor_mapping`: match the tensors of a directory with those of a model
- `varlen_attention`: attention over sequences that lie end to end
- `weight_writer`: write weight files piece by piece on all cores
"""
