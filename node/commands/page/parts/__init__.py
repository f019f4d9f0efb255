"""Make the parts of a live page: pure functions from what is known of a run to markup.

- `invite`: the lines to send to a volunteer
- `learner_head`: the top of a learner's page, and its notices
- `learner_page`: which parts a learner's page has, and in which order
- `node_page`: the same for a node
- `orders`: the forms with which an owner gives orders
- `peers`: rows of the table of peers
- `samples`: prompts and completions
- `versions`: published versions, and how far they have come
"""
