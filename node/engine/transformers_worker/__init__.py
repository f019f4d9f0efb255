"""The engine worker on Hugging Face transformers: a program that reads requests on stdin and answers on stdout.

    python -I transformers_worker/__main__.py SAMPLING_PATH SETTINGS_JSON

It stands alone, so that it runs in any virtual environment with torch, transformers >= 4.56, safetensors and numpy: of
ours it loads this directory and one file, `protocol/sampling.py`, by their paths. So its files name each other
relatively, and nothing else of ours. (`-I` keeps the script's own folder off sys.path, where names such as `cache`
would hide others' modules.)

What always holds: a completion is a function of the installed weights, the prompt and the seed; weights change only
between batches and only after everything about the new ones was checked; nothing from a model directory is executed.
The process ends as soon as its stdin does, even in mid-batch.
"""
