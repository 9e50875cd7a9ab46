"""Compares, for some minutes or from a seed, masks of random languages with the plain loop over all tokens (`masks.py`), random
chains of pieces with fresh runs (`chains.py`), or random pydantic types with pydantic (`types.py`):

    python -m tests.fuzz masks --minutes 60
    python -m tests.fuzz types --minutes 60
    python -m tests.fuzz chains --seed 123 --count 1

Findings are printed, of masks each different one once, with a smaller example, and the run goes on.
"""

from __future__ import annotations

import argparse
import sys
from random import SystemRandom

from tests.fuzz import chains, masks, types


def main() -> int:
    """Run the command; the number of different findings."""
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, formatter_class=keep_lines)
    parser.add_argument("what", choices=["masks", "chains", "types"])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--count", type=int, help="the most languages, chains or types")
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32), help="of the first language, chain or type")
    parser.add_argument("--tekken", type=float, default=0.05, help="the part of the languages for 131,072 tokens")
    options = parser.parse_args()
    counts: masks.Counts | chains.Counts | types.Counts
    counts, found, seconds = {"masks": masks, "chains": chains, "types": types}[options.what].Counts(), 0, 60 * options.minutes
    if isinstance(counts, masks.Counts):
        findings = masks.run(options.seed, seconds, counts, count=options.count, tekken=options.tekken, progress=60)
    elif isinstance(counts, types.Counts):
        findings = types.run(options.seed, seconds, counts, count=options.count, progress=60)
    else:
        findings = chains.run(options.seed, seconds, counts, count=options.count, progress=60)
    for finding in findings:
        found += 1
        print(f"FINDING {found}: {finding}", flush=True)
    print(f"from seed {options.seed}: {found} findings; {counts}")
    return found


if __name__ == "__main__":
    sys.exit(main())
