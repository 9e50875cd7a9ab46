"""From logits to tokens: masks applied to all rows at once, and which rows are drawn together.

Imports `policies`, `samplers` and the rooms below these.
"""
