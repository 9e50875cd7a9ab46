"""Fonts for drawing receipts: that of pillow, and those of a folder, of which some families are held out."""

import random
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import ImageFont

from outlines_cont.cli.receipts import CURRENCIES, default_font

COMMON = (
    *(
        "DejaVuSans",
        "DejaVuSans-Bold",
        "DejaVuSansMono",
        "LiberationSans-Regular",
        "LiberationMono-Regular",
        "Lato-Regular",
    ),
    "OpenSans-Regular",
)
"""Those of the training of the reader and the tower; the set *words* of the evaluation has them."""
TRAINED = (
    *COMMON,
    *("LiberationSerif-Regular", "DejaVuSerif", "FreeSans", "FreeSerif", "C059-Roman", "P052-Roman"),
    *(
        "Cantarell-Regular",
        "LiberationSans-Bold",
        "OpenSans-Semibold",
        "FiraCode-Regular",
        "NotoMono-Regular",
        "Inconsolata",
    ),
)
HELD_OUT = (
    "Roboto-Regular",
    "Carlito-Regular",
    "JetBrainsMono-Regular",
    "Hack-Regular",
    "Caladea-Regular",
    "URWBookman-Light",
)
DEFAULT_SHARE = 0.35
"""Share of pictures in pillow's font, which the demo has."""


class Fonts:
    """Fonts to draw from.

    Args:
        folder: Where font files are searched, at any depth.
        names: File names without their endings.
        with_default: Whether pillow's font is among them.
    """

    def __init__(self, folder: Path, names: tuple[str, ...], with_default: bool) -> None:
        paths = {path.stem: path for path in sorted(folder.rglob("*")) if path.suffix in (".ttf", ".otf")}
        missing = [name for name in names if name not in paths]
        if missing:
            raise SystemExit(
                f"expected fonts named {', '.join(missing)} in {folder}. Install them, or name another folder."
            )
        self._fonts = [_loader(paths[name]) for name in names]
        self._with_default = with_default

    def draw(self, rng: random.Random) -> tuple[Callable[[float], Any], str]:
        """Return a function from sizes to fonts, and the currency signs that the font has."""
        if self._with_default and rng.random() < DEFAULT_SHARE:
            return default_font, "$"
        return rng.choice(self._fonts)


def _loader(path: Path) -> tuple[Callable[[float], Any], str]:
    @lru_cache(maxsize=64)
    def load(size: float) -> Any:
        return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)

    missing = bytes(load(64.0).getmask("\uffff"))
    return load, "".join(sign for sign in CURRENCIES.values() if sign and bytes(load(64.0).getmask(sign)) != missing)
