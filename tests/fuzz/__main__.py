"""Compares, for some minutes or from a seed, masks of random languages with the plain loop over all tokens (`masks.py`), or random
chains of pieces with fresh runs (`chains.py`), or compiles schemas and grammars whose references double (`doubling.py`):

    python -m tests.fuzz masks --minutes 60
    python -m tests.fuzz chains --seed 123 --count 1

Findings are printed, of masks each different one once, with a smaller example, and the run goes on.
"""

from __future__ import annotations

import argparse
import sys
from random import SystemRandom

from tests.fuzz import chains, doubling, masks


def main() -> int:
    """Run the command; the number of different findings."""
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, formatter_class=keep_lines)
    parser.add_argument("what", choices=["masks", "chains", "doubling"])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--count", type=int, help="the most languages or chains")
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32), help="of the first language or chain")
    parser.add_argument("--tekken", type=float, default=0.05, help="the part of the languages for 131,072 tokens")
    options = parser.parse_args()
    counts, found, seconds = (chains if options.what == "chains" else masks).Counts(), 0, 60 * options.minutes
    if options.what == "doubling":
        findings = doubling.run(options.seed, seconds, counts, count=options.count)
    elif isinstance(counts, masks.Counts):
        findings = masks.run(options.seed, seconds, counts, count=options.count, tekken=options.tekken, progress=60)
    else:
        findings = chains.run(options.seed, seconds, counts, count=options.count, progress=60)
    for finding in findings:
        found += 1
        print(f"FINDING {found}: {finding}", flush=True)
    print(f"from seed {options.seed}: {found} findings; {counts}")
    return found


if __name__ == "__main__":
    sys.exit(main())
