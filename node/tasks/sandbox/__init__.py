"""Run programs and libraries that execute what strangers wrote, in a sandbox. Without bubblewrap nothing runs.

- `bubblewrap`: run one program
- `confined_library`: keep a library in a sandbox, and ask it questions
- `confined_program`: the program that answers these questions inside
- `isolated_asserts`: run asserts that a tested program cannot reach
- `seccomp`: forbid system calls inside
- `workshop`: keep a sandbox for one episode
- `workshop_program`: the program that runs one piece after another inside
"""
