"""What lies in a state directory, and how it is found, locked and kept over a kill.

- `identities`: whether the keys of a directory are still those it worked with
- `keys`: private keys
- `learner_state`: a learner's directory
- `locate`: which directory or configuration a command means
- `operator_orders`: bans and pardons of the operator, for a running learner
- `owner_orders`: what an owner asks of a running node
- `receipt_queries`: what the receipts say, for reports and statements
- `receipt_rows`: rows of the receipts, as values
- `receipt_tables`: their tables
- `receipts`: the receipts that a rollout node keeps
- `rollout_state`: a rollout node's directory
- `status_file`: what a running node says of itself
- `stored_versions`: versions in a store that are complete
"""
