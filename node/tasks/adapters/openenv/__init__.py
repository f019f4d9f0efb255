"""Use environments behind OpenEnv servers as tasks.

- `actions`: turn what a policy says into requests, and a server's replies into what the policy reads
- `messages`: write and read the messages of a server
- `server`: start a server that ends with this process
- `server_program`: the program of that server
- `session`: one episode's connection to a server
- `task`: `openenv:URL` and `openenv:MODULE:APP`
"""
