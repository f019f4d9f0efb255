"""What the learner believes of a peer's work, and why: audits of tokens against weights, and tests over a history.

Pure. What always holds: a rule returns a value with its evidence; nothing here acts on a peer.
"""
