"""`volery serve`: serve the newest or a named version through an OpenAI-compatible endpoint.

- `admission`: which requests are answered, wait, or are refused
- `answers`: answers as JSON
- `api`: paths, keys, and completions while their client takes them
- `api_error`: errors in the form that clients read
- `command`: turns the command line into an endpoint
- `connection`: one connection, as HTTP/1.1 within bounds
- `keys`: the key that requests must give
- `limits`: limits on sizes, numbers and times
- `requests`: turns the bytes of a request into what is generated
- `server`: the listener
"""
