"""Sampling: penalties, logits warpers, and the draw, for rows with different samplers at once.

Imports no other room.
"""

from outlines_cont.sampling.batch import SamplerBatch
from outlines_cont.sampling.kernels import TokenCounts
from outlines_cont.sampling.params import STEPS, Penalties, SamplingParams

__all__ = ["STEPS", "Penalties", "SamplerBatch", "SamplingParams", "TokenCounts"]
