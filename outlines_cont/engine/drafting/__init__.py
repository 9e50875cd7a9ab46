"""Speculative decoding of a row: the draft tokens, how many pay, their acceptance rates, and tokens fed ahead.

Imports `engine.drawing`, `policies` and what lies below.
"""
