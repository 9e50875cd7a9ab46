"""Compares, for some minutes or from a seed, masks of random languages with the plain loop over all tokens (`masks.py`), random chains of
pieces with fresh runs (`chains.py`), or random patterns of ECMA-262 with Node.js, by default 5,000 (`patterns.py`):

    python -m tests.fuzz masks --minutes 60
    python -m tests.fuzz chains --seed 123 --count 1
    python -m tests.fuzz patterns --minutes 60

Findings are printed, of masks each different one once, with a smaller example, and the run goes on.
"""

from __future__ import annotations

import argparse
import sys
from random import SystemRandom

from tests import node
from tests.fuzz import chains, masks, patterns


def main() -> int:
    """Run the command; the number of different findings."""
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, formatter_class=keep_lines)
    parser.add_argument("what", choices=["masks", "chains", "patterns"])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--count", type=int, help="the most languages, chains or patterns")
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32), help="of the first language, chain or pattern")
    parser.add_argument("--tekken", type=float, default=0.05, help="the part of the languages for 131,072 tokens")
    options = parser.parse_args()
    if options.what == "patterns" and node.missing():
        print(f"nothing to compare with: {node.missing()}")
        return 0
    counts, found, seconds = {"masks": masks, "chains": chains, "patterns": patterns}[options.what].Counts(), 0, 60 * options.minutes
    if isinstance(counts, masks.Counts):
        findings = masks.run(options.seed, seconds, counts, count=options.count, tekken=options.tekken, progress=60)
    elif isinstance(counts, patterns.Counts):
        findings = patterns.run(options.seed, seconds, counts, count=options.count, progress=60)
    else:
        findings = chains.run(options.seed, seconds, counts, count=options.count, progress=60)
    for finding in findings:
        found += 1
        print(f"FINDING {found}: {finding}", flush=True)
    print(f"from seed {options.seed}: {found} findings; {counts}")
    return found


if __name__ == "__main__":
    sys.exit(main())
