"""Logits warpers, one file each: steps between the penalties and the draw. A new one needs its own file and no other."""

from outlines_cont.sampling.warpers.dry import DRY
from outlines_cont.sampling.warpers.min_p import MinP
from outlines_cont.sampling.warpers.mirostat import Mirostat
from outlines_cont.sampling.warpers.temperature import Temperature
from outlines_cont.sampling.warpers.top_a import TopA
from outlines_cont.sampling.warpers.top_k import TopK
from outlines_cont.sampling.warpers.top_p import TopP
from outlines_cont.sampling.warpers.typical_p import TypicalP
from outlines_cont.sampling.warpers.warper import RowWarper, Warper, WholeRowWarper
from outlines_cont.sampling.warpers.xtc import XTC, RowXTC

__all__ = [
    "DRY",
    "XTC",
    "MinP",
    "Mirostat",
    "RowWarper",
    "RowXTC",
    "Temperature",
    "TopA",
    "TopK",
    "TopP",
    "TypicalP",
    "Warper",
    "WholeRowWarper",
]
