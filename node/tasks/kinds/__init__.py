"""Provide the built-in tasks. Each is a plain function of its seed.

- `asked_elsewhere`: problems of a data file whose completions a judge or a service rewards
- `code`: programs that must pass tests
- `decontamination`: leave out problems that must not be trained on
- `generated`: small tasks that generate their problems
- `guess_and_lookup`: small tasks of several turns
- `gym_program`: score answers by reasoning-gym, in a sandbox
- `jsonl`: problems of a JSON Lines, CSV or Parquet file, or of a saved data set
- `poker`: hands of poker
- `problem_files`: read problems from files of any format
- `reasoning_gym`: data sets of reasoning-gym
- `sokoban`: Sokoban
- `with_tools`: another task, played with Python and a shell
"""
