"""From logits to tokens: masks applied to all rows together, and which rows are drawn together.

Imports `policies`, `samplers` and the rooms below these.
"""
