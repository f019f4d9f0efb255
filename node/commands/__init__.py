"""The commands that run neither role, a folder each.

- `chat`: `volery chat`
- `compact`: `volery compact`
- `demo`: `volery demo`
- `doctor`: `volery doctor`: how this machine is connected, and what it can do for a swarm
- `drill`: `volery drill`
- `export`: `volery export`
- `init`: `volery init`
- `new`: `volery new`
- `notify`: `volery notify`
- `page`: the process that serves a live page
- `plan`: `volery plan`
- `samples`: `volery samples`
- `serve`: `volery serve`
- `service`: `volery service`
- `simulate`: `volery simulate`
- `statements`: `volery receipts`, `volery prove`, `volery reputation`
- `tasks`: `volery tasks`
- `warmup`: `volery warmup`
"""
