"""`python -m node` is `volery`."""

from node.cli.main import main

main()
