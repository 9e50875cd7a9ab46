"""The command line `outlines-cont`: `app` parses and prints, a module per command does its work.

Nothing imports it. Heavy imports happen inside the commands, so that `--help` and wrong options answer at once, and a wrong path is
reported before torch is loaded.
"""

from outlines_cont.cli.app import main

__all__ = ["main"]
