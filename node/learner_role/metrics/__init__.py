"""Measure what a learner does, and send the metrics to sinks. All metrics are declared in one file.

- `board`: the newest value of every series
- `catalogue`: every metric, with a sentence
- `collect`: turns events and steps into values
- `monitor`: joins metrics, alarms and samples
- `open_sinks`: opens the configured sinks
- `prometheus`: serves metrics to Prometheus
- `sample_selection`: which groups of a step are kept
- `sample_store`: the file of samples
- `side_file`: SQLite files beside the ledger
- `sinks`: the interface of all sinks, and their queues
- `sqlite`: writes metrics to SQLite
- `stall_detector`: how long a run may stand still before the operator is told
- `tensorboard`: writes metrics for TensorBoard
- `wandb`: sends metrics to Weights & Biases
- `wandb_child`: the process that runs wandb
"""
