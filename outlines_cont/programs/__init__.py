"""Programs: what decides which span, text, fork or wait comes next in a row. One runner executes the plans of drivers, for controllers and
scripts: rows of one job of the engine, with a budget, shared variables and events.

Imports `engine` and the layers below it.
"""
