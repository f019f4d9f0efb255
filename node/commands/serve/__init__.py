"""`volery serve`: an OpenAI-compatible endpoint of the newest or a named version.

- `admission`: who is answered, who waits, and who is sent away
- `answers`: answers as JSON
- `api`: paths, keys, and completions while their client takes them
- `api_error`: errors in the shape that clients read
- `command`: from the command line to an endpoint
- `connection`: one connection, as HTTP/1.1 within bounds
- `keys`: the key that requests must give
- `limits`: how much is taken in, held and waited for
- `requests`: requests from bytes to what is generated
- `server`: the listener
"""
