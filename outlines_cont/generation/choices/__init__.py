"""Texts that are chosen as wholes: their spellings as a tree with the model's log-probabilities, the law of a choice among them, and the
values of fields of JSON, which rows choose in the same way.

Imports `engine`, `policies` and the rooms below them.
"""
