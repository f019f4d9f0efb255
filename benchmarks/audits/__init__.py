"""Parts of the audit benchmarks: policies and cheats, recorded completions and their audits, tests and verdicts."""
