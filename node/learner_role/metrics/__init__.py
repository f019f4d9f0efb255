"""What a learner measures, declared in one file, and where it goes.

- `board`: the newest values
- `catalogue`: every metric, with a sentence
- `collect`: from events and steps to values
- `monitor`: joins metrics, alarms and samples
- `open_sinks`: opens what the configuration names
- `prometheus`: for Prometheus
- `sample_selection`: which groups of a step are kept
- `sample_store`: where samples lie
- `side_file`: SQLite files beside the ledger
- `sinks`: the port behind which all sinks stand
- `sqlite`: for SQLite
- `stall_detector`: how long a run may stand still before it is said
- `tensorboard`: for TensorBoard
- `wandb`: for Weights & Biases
- `wandb_child`: its process
"""
