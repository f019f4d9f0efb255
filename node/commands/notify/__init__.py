"""Run `volery notify`: post a notice for a try, so that an operator sees that notices arrive.

- `command`: reads the configuration, and posts the notice once
"""
