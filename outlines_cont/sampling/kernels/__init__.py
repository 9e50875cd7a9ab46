"""What samplers compute on tensors: sums by blocks, draws without sorting, top values, counts of tokens.

Imports `errors` and torch.
"""
