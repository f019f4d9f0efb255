"""Environments with a state: which of them are alive, who is replayed, and how their methods are called.

- `question`: what is asked of an episode's environment, and digests of what one answered
- `live_environments`: a pure core: which environment goes on, which is made anew and told again what was said
- `environment_host`: asyncio around it: environments that are alive, several at work at a time
- `transcript`: a transcript folded again, where a task of several turns is a pure function of it
"""
