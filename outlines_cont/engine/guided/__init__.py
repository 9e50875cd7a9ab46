"""Classifier-free guidance: its formula, and the negative prompt that is fed beside a row.

Imports `engine.guessing`, `engine.drawing` and what lies below.
"""
