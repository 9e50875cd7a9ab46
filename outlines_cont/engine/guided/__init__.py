"""Classifier-free guidance: its formula, and the negative prompt that is fed together with a row.

Imports `engine` and the rooms below these.
"""
