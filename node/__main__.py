"""`python -m node` is `volery`."""

from node.cli import main

main()
