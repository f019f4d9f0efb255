"""Commands that are no role, a folder each.

- `demo`: `volery demo`
- `doctor`: `volery doctor`: how this machine is connected, and what it can do for a swarm
- `drill`: `volery drill`
- `export`: `volery export`
- `init`: `volery init`
- `plan`: `volery plan`
- `samples`: `volery samples`
- `simulate`: `volery simulate`
- `statements`: `volery receipts`, `volery prove`, `volery reputation`
"""
