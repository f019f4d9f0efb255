"""Find, lock and keep the contents of state directories, also after a kill.

- `about`: how a node last described itself
- `identities`: checks that a directory still has the keys that it worked with
- `keys`: private keys
- `learner_state`: a learner's directory
- `locate`: finds the directory or configuration that a command means
- `operator_orders`: bans and pardons of the operator, for a running learner
- `order_files`: orders for a running program, one file for each
- `owner_orders`: orders of an owner for a running node: pause, drain, limits
- `receipt_queries`: reads the receipts, for reports and statements
- `receipt_rows`: rows of the receipts, as values
- `receipt_tables`: tables of the receipts
- `receipts`: writes the receipts that a rollout node keeps
- `rollout_state`: a rollout node's directory
- `status_file`: what a running node says about itself
- `stored_versions`: versions in a store that are complete
"""
