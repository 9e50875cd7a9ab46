"""Compares masks of random languages with the plain loop over all tokens (`masks.py`), for some minutes or from a seed:

    python -m tests.fuzz masks --minutes 60
    python -m tests.fuzz masks --seed 123 --count 1

Each different finding is printed once, with a smaller example, and the run goes on.
"""

from __future__ import annotations

import argparse
import sys
from random import SystemRandom

from tests.fuzz.masks import Counts, run


def main() -> int:
    """Run the command; the number of different findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=["masks"])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--count", type=int, help="the most languages")
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32), help="of the first language")
    parser.add_argument("--tekken", type=float, default=0.05, help="the part of the languages for 131,072 tokens")
    options = parser.parse_args()
    counts, found, seconds = Counts(), 0, 60 * options.minutes
    for finding in run(options.seed, seconds, counts, count=options.count, tekken=options.tekken, progress=60):
        found += 1
        print(f"FINDING {finding}", flush=True)
    print(f"from seed {options.seed}: {found} findings; {counts}")
    return found


if __name__ == "__main__":
    sys.exit(main())
