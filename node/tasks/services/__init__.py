"""Ask judges and reward services, which compute rewards in another program, over HTTP from a verifier's process.

- `answer_cache`: remember earlier answers
- `asker`: batches, retries, timeouts and the cache, on asyncio
- `http_client`: send one request, and read a limited reply
- `judge`: a language model as a judge, over the chat completions protocol
- `loop_thread`: asyncio for callers without a loop
- `retries`: decide when to ask again, and whether a service is down
- `remarks`: notices about services for the operator
- `reward_service`: a plain service, items in and rewards out
- `terms`: the settings of a service, and the form of its answers
- `verdicts`: write the question to a judge, and read its verdict
"""
