"""The model's own ways: how it is spoken to, and what the operator changes of that.

- `chat_template`: a conversation as the text that a model was taught to read
- `model_ways`: template, system prompt, stops and tool format as the operator has them
- `stop_tokens`: which token ids end a completion
"""
