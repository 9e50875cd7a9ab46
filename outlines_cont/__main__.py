"""`python -m outlines_cont` is the command `outlines-cont`."""

from outlines_cont.cli import main

main()
