"""The learner: it judges records, trains, publishes, and says who is trusted.

- `announce`: the learner as others find it
- `app`: the composition root
- `certificate_renewal`: keeps the learner's certificate valid
- `command`: `volery learn`
- `dry_run`: `volery learn --dry-run`
- `metrics`: what is measured, and where it goes
- `peers`: sessions with peers
- `preflight`: what `learn` and its dry run look at first
- `scheduling`: leases and the plan
- `training`: the training loop and what it needs
- `trial`: a run tried out before anybody joins
- `trust`: audits, bans, reputation
"""
