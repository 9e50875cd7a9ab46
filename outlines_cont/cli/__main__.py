"""`python -m outlines_cont.cli`."""

from outlines_cont.cli.app import main

main()
