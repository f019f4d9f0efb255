"""What every engine worker is made of: how it starts, frames, requests as rows, refusals, what a model directory holds.

    python -I common_worker/__main__.py WORKER SAMPLING_PATH SETTINGS_JSON

runs the worker whose directory beside this one is WORKER, for example `transformers_worker`. What always holds: of ours
a worker loads these directories and one file, `protocol/sampling.py`, by their paths, so that it runs in any virtual
environment; its files name each other relatively, and nothing else of ours. (`-I` keeps the script's own folder off
sys.path, where names such as `calls` would hide others' modules.)
"""
