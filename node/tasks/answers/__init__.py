"""Find the answer in a completion, normalise its spelling, and decide whether it equals the reference.

- `code_blocks`: find the program in a completion
- `extraction`: find the answer in a text
- `math_comparison`: ask math-verify, in a sandbox
- `math_comparison_program`: the program in that sandbox
- `math_equality`: decide whether two expressions are equal
- `numbers`: read numbers as people write them
- `spelling`: give each answer one spelling
"""
