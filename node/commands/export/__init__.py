"""`volery export`: one stored version as a model directory that transformers loads.

- `command`: finds the version, joins its files, and writes them
"""
