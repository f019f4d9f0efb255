"""Tool calls in what a policy says: read and written in the format of the model's family.

- `formats`: the formats, and which one a chat template teaches
- `reading`: from text to content and calls
- `strict_json`: JSON that a stranger wrote, as a value or as what is wrong with it
- `writing`: from calls to text
"""
