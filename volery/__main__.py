"""Run `volery` as `python -m volery`."""

from node.cli.main import main

main()
