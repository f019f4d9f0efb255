"""From a delivery to a batch. Each record has one verdict, and nothing reaches a batch that was not admitted.

- `admission`: the rules by which a delivery is judged, cheapest first
- `batch_arrays`: a batch as arrays for the trainer
- `buffer`: groups that were admitted and wait to be trained on
- `environment`: the port between episodes and tasks
- `episodes`: episodes of several turns, and which peer makes the next one
- `overlong`: what is trained on of completions that were cut off
- `open_leases`: leases that are open: whose they are, and where their seeds come from
- `prompt_choice`: which prompt is leased next
- `reward_parts`: rewards with names, of tasks that give several
- `router_replay`: the experts of a record on their way into a batch
- `score_leases`: groups that teacher nodes have under way
"""
