"""The tasks that come with the program. Each is a plain function of its seed.

- `code`: programs that pass tests
- `decontamination`: problems that a held-out set also has
- `generated`: small tasks that are made on the spot
- `guess_and_lookup`: small tasks of several turns
- `gym_program`: scores answers by reasoning-gym, behind walls
- `jsonl`: problems from a JSONL file
- `poker`: poker hands
- `problem_files`: problems from files
- `reasoning_gym`: reasoning-gym's data sets
- `sokoban`: Sokoban
"""
