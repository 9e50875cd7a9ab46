"""The command line `outlines-cont`: `options` has the commands and their options, `__main__` runs them, a module per command does its work.

Nothing imports it. Heavy imports happen when a command runs, so that `--help` and wrong options do not wait for them, and a wrong path is
reported before torch is loaded.
"""
