"""What the benchmark of audits is made of: policies and cheats, what engines made and say of it, tests and verdicts."""
