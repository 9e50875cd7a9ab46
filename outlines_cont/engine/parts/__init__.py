"""The parts of a running row: its tokens, what of them was fed, its policies, and its limits.

A `Row` is made of one of each, and the `Shadow` of a guided row has fed tokens of its own. This room imports what is drawn and what is
guessed, `policies` and `state`; no part knows another one, nor the row.
"""
