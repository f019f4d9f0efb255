"""The learner: it judges records, trains, publishes, and says who is trusted.

- `announce`: the learner as others find it
- `app`: opens what the services stand on, and runs them
- `certificate_renewal`: keeps the learner's certificate valid
- `command`: `volery learn`
- `dry_run`: `volery learn --dry-run`
- `metrics`: what is measured, and where it goes
- `peers`: sessions with peers
- `preflight`: what `learn` and its dry run look at first
- `scheduling`: leases and the plan
- `services`: all services of a run, built
- `shared`: what every service is given
- `training`: the training loop and what it needs
- `trial`: a run tried out before anybody joins
- `trust`: audits, bans, reputation
"""
