"""The parts of a running row: its tokens, how many of them are fed, its policies with their states, and its limits.

A `Row` has one of each; the negative prompt of a guided row has fed tokens of its own. Imports `engine.drafting`, `engine.drawing`,
`policies`, `state` and the rooms below these; no part imports another, nor the row.
"""
