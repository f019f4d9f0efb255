"""Run the learner: judge records, train, publish versions, and decide which peers to trust.

- `announce`: the invite, and the learner's own row in the ledger
- `app`: opens ledger, network and children, and runs the services
- `certificate_renewal`: keeps the learner's certificate valid
- `command`: `volery learn`, and how Ctrl-C ends it
- `distillation`: a teacher that scores delivered completions
- `dry_run`: `volery learn --dry-run`
- `metrics`: what is measured, and where it goes
- `peers`: sessions with peers
- `preflight`: the checks that `learn` and its dry run make first
- `receipt_packer`: packs old receipts while the learner works
- `replayed_routing`: how the model routes tokens, if its routing is replayed
- `scheduling`: leases for each peer, and which peers are active
- `services`: builds the services of a run, and connects them
- `shared`: context, state and signals for all services
- `training`: the training loop and what it needs
- `trial`: a test of a run before anybody joins
- `trust`: audits, bans, reputation
"""
