"""Run environments that keep a state: which of them stay alive, which are replayed, how their methods are called.

- `question`: a question about an episode, and digests of the answers in it
- `live_environments`: a pure core that decides which environment goes on, and which is made again and replayed
- `environment_host`: asyncio around that core; several environments work at a time
- `transcript`: compute a transcript again for a task whose answers are a pure function of it
"""
