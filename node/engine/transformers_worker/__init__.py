"""The engine worker on Hugging Face transformers: a program that reads requests on stdin and answers on stdout.

It stands alone, started by `common_worker`, which see; it runs in any virtual environment with torch,
transformers >= 4.56, safetensors and numpy.

What always holds: a completion is a function of the installed weights, the prompt and the seed; weights change only
between batches and only after everything about the new ones was checked; nothing from a model directory is executed.
The process ends as soon as its stdin does, even in mid-batch.
"""
