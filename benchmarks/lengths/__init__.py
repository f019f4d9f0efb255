"""A recorded run of Volery whose completions differ much in length, and its replay.

- `collatz`: the task, whose right answers have a long tail
- `record`: makes the run and writes the recording, benchmarks/recorded/lengths.jsonl
- `recording`: the recording as a value, read and written
- `replay`: the recording's prompts and lengths for the simulator
- `trial`: one simulated swarm, in today's order and longest first
"""
