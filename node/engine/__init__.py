"""Engines: what turns a prompt, a seed and a policy version into tokens and their logprobs."""
