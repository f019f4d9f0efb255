"""The application: one program, `volery`, that plays the rollout role or the learner role.

This package composes `swarm`, `learner` and `protocol`. Its process never imports torch or vllm; generation and
training are child processes (`node.children`).
"""
