"""Read and write tool calls in what a policy says, in the format of the model's family.

- `formats`: the formats, and which one a chat template uses
- `reading`: parse text into content and calls
- `strict_json`: parse JSON that a stranger wrote
- `writing`: write calls as text
"""
