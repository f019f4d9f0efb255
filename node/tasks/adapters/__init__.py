"""Environments that others wrote, as tasks: each library is imported when its task is opened.

- `chat_transcript`: which messages of a conversation are new, and whether an earlier one was rewritten
- `gymnasium_text`: `gymnasium:ENV_ID`, environments that can be read as text
- `openenv`: environments behind servers of OpenEnv
- `seeded_problems`: problems of environments that begin from a seed
- `text_actions`: words, numbers and texts as actions of Gymnasium
- `verifiers`: environments of the package of that name
"""
