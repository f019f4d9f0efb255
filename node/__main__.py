"""Run `volery` for `python -m node`."""

from node.cli.main import main

main()
