"""`python -m outlines_cont`: the command `outlines-cont`."""

from __future__ import annotations

from outlines_cont.cli.__main__ import main

if __name__ == "__main__":
    main()
