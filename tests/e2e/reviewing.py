"""`volery learn` as `tests.e2e.doomed` runs it, with a review of reputations every half second.

python -m tests.e2e.reviewing SWARM_TOML
"""

from __future__ import annotations

from runpy import run_module

from node.learner_role.trust import reputation_service

if __name__ == "__main__":
    reputation_service.REVIEW_S = 0.5
    run_module("tests.e2e.doomed", run_name="__main__")
