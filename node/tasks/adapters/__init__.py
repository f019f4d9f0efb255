"""Use environments of other libraries as tasks. Each library is imported when its task is opened.

- `chat_transcript`: find the new messages of a conversation, and earlier ones that were rewritten
- `gymnasium_text`: `gymnasium:ENV_ID`, environments that can be read as text
- `openenv`: environments behind OpenEnv servers
- `seeded_problems`: problems of environments that begin from a seed
- `text_actions`: parse words, numbers and texts as actions of Gymnasium
- `verifiers`: environments of the package of that name
"""
