"""Environments behind servers of OpenEnv, as tasks.

- `actions`: what is sent to a server for what a policy says, and what the policy reads of its answer
- `messages`: the messages of a server, as values
- `server`: a server that is started here, and ends with this process
- `server_program`: the program that it is
- `session`: one episode's connection to a server
- `task`: `openenv:URL` and `openenv:MODULE:APP`
"""
