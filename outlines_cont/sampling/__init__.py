"""Choosing tokens: penalties, the cut to the likely tokens, and the draw, for rows with different samplers at once."""

from outlines_cont.sampling.batch import SamplerBatch
from outlines_cont.sampling.law import STEPS, Law
from outlines_cont.sampling.penalties import Penalties
from outlines_cont.sampling.token_counts import TokenCounts

__all__ = ["STEPS", "Law", "Penalties", "SamplerBatch", "TokenCounts"]
