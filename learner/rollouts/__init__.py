"""Turn deliveries into batches. Each record gets one verdict, and only admitted records reach a batch.

- `admission`: the rules by which a delivery is judged, cheapest first
- `batch_arrays`: write a batch as arrays for the trainer
- `buffer`: keep admitted groups until they are trained on
- `environment`: the interface between episodes and tasks
- `episodes`: track episodes of several turns, and which peer makes the next turn
- `overlong`: how completions that were cut off are trained on
- `open_leases`: track open leases: their peers, their versions, their seeds
- `prompt_choice`: choose the prompt of the next lease
- `reward_parts`: rewards with names, for tasks that give several
- `router_replay`: put the experts of records into a batch
- `score_leases`: track groups that teacher nodes are scoring
"""
