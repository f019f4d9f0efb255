"""Bytes among peers, and how peers behave: fetching, relaying, delivering, remembering who did what.

Pure cores decide (`membership`, `announcements`, `scheduler`), thin trio drivers perform, and only
`swarm.libp2p` knows libp2p. This package never meets `learner`; both know `protocol` only.
"""
