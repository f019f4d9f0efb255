"""`python -m volery` is `volery`."""

from node.cli.main import main

main()
