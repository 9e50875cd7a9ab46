"""Logits warpers, one file each: steps between the penalties and the draw. A new one needs its own file and no other."""

from outlines_cont.sampling.warpers.min_p import MinP
from outlines_cont.sampling.warpers.temperature import Temperature
from outlines_cont.sampling.warpers.top_k import TopK
from outlines_cont.sampling.warpers.top_p import TopP
from outlines_cont.sampling.warpers.warper import RowWarper, Warper

__all__ = ["MinP", "RowWarper", "Temperature", "TopK", "TopP", "Warper"]
