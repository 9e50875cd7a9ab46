"""Numerical kernels of samplers: inverse transform sampling by block sums, top blocks without a sort (torch), and token counts (numpy).

Imports `errors` and torch.
"""
