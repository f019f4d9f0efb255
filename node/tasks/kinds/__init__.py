"""The tasks that come with the program. Each is a plain function of its seed.

- `asked_elsewhere`: answers from a file's problems that a judge or a service is asked about
- `code`: programs that pass tests
- `decontamination`: problems that a held-out set also has
- `generated`: small tasks that are made on the spot
- `guess_and_lookup`: small tasks of several turns
- `gym_program`: scores answers by reasoning-gym, behind walls
- `jsonl`: answers from a JSON Lines, CSV or Parquet file, or a saved data set
- `poker`: poker hands
- `problem_files`: problems from files of any format
- `reasoning_gym`: reasoning-gym's data sets
- `sokoban`: Sokoban
- `with_tools`: another task, played with Python and a shell
"""
