"""Walls around programs and libraries that execute what strangers wrote. Without bubblewrap nothing runs.

- `bubblewrap`: runs one program
- `confined_library`: keeps a library behind walls, and asks it
- `confined_program`: serves such questions inside
- `isolated_asserts`: asserts that a tested program cannot see
- `seccomp`: system calls that are forbidden inside
- `workshop`: a sandbox that stays for one episode
- `workshop_program`: runs one piece after another inside
"""
