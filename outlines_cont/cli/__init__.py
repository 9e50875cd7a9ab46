"""The command line `outlines-cont`: `__main__` parses and prints, a module per command does its work.

Nothing imports it. Heavy imports happen inside the commands, so that `--help` and wrong options do not wait for them, and a wrong path is
reported before torch is loaded.
"""
