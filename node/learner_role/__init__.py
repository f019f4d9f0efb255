"""The learner: it judges records, trains, publishes, and says who is trusted.

- `announce`: the learner as others find it
- `app`: opens what the services stand on, and runs them
- `certificate_renewal`: keeps the learner's certificate valid
- `command`: `volery learn`, and how Ctrl-C ends it
- `distillation`: a teacher that scores what peers deliver
- `dry_run`: `volery learn --dry-run`
- `metrics`: what is measured, and where it goes
- `peers`: sessions with peers
- `preflight`: what `learn` and its dry run look at first
- `receipt_packer`: packs old receipts while the learner works
- `replayed_routing`: how the model routes, where routers are replayed
- `scheduling`: what each peer is leased, and who is active
- `services`: builds the services of a run, and says who is given what
- `shared`: what every service is given
- `training`: the training loop and what it needs
- `trial`: a run tried out before anybody joins
- `trust`: audits, bans, reputation
"""
