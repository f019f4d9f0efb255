"""The answer in a completion: where it stands, how it is spelled, and whether it equals the reference.

- `code_blocks`: the program in a completion
- `extraction`: where in a text the answer stands
- `math_comparison`: asks math-verify, behind walls
- `math_comparison_program`: the program behind those walls
- `math_equality`: whether two expressions are equal
- `numbers`: numbers as people write them
- `spelling`: one spelling for each answer
"""
