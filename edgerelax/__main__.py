"""`python -m edgerelax` is the command `edgerelax`."""

from edgerelax.cli.main import main

main()
