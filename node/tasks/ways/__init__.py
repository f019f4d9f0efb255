"""Write conversations the way that a model was taught, with what the operator overrides.

- `chat_template`: turn a conversation into the text that a model was taught to read
- `model_ways`: the operator's template, system prompt, stops and tool format
- `stop_tokens`: find the token ids that end a completion
"""
