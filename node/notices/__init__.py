"""Post notices of what happened to a person's phone, chat or program, over HTTP.

- `destination`: where notices go, and how that is shown without its secret
- `flood_limit`: how many notices of a kind are posted
- `learner_notices`: which events of a learner are notices
- `node_notices`: which events of a node are notices
- `notice`: one notice, and the sentences of events
- `retry_policy`: when a notice is tried again
- `sender`: posts notices from a queue while a program runs
- `shapes`: the request for ntfy, Slack, Discord, or a program of your own
"""
