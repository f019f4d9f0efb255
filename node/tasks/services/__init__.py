"""Judges and reward services: rewards that another program computes, asked over HTTP from a verifier's process.

- `answer_cache`: answers that were given before
- `asker`: batches, retries, time limits and the cache, on asyncio
- `http_client`: one request, bounded
- `judge`: a language model as a judge, over the chat completions protocol
- `loop_thread`: asyncio for whoever is not on it
- `patience`: when to ask again, and whether a service is down
- `remarks`: what the operator is to hear of services
- `reward_service`: a plain service, items in and rewards out
- `terms`: what is set of a service, and the form of its answers
- `verdicts`: what a judge is asked, and how its verdict is read
"""
