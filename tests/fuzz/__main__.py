"""Random tests for as long as one likes, or from a seed, each against an oracle:

- `masks`: masks of random languages against the plain loop over all tokens;
- `chains`: random chains of pieces against fresh runs;
- `images`: such chains behind images;
- `doubling`: schemas and grammars whose references double, which must be compiled or refused with little work;
- `types`: random pydantic types against pydantic;
- `patterns`: random ECMA-262 patterns against Node.js.

    python -m tests.fuzz masks --minutes 60
    python -m tests.fuzz chains --seed 123 --count 1

Findings are printed, of masks each different one once, with a smaller example, and the run goes on.
"""

from __future__ import annotations

import argparse
import sys
from random import SystemRandom
from typing import Any

from tests import node
from tests.fuzz import chains, doubling, images, masks, patterns, types

FUZZERS: dict[str, Any] = {
    **{"masks": masks, "chains": chains, "images": images, "doubling": doubling, "types": types, "patterns": patterns}
}
"""Modules with `Counts` and `run`."""


def main() -> int:
    """Run the command; the number of different findings."""
    keep_lines = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__, formatter_class=keep_lines)
    parser.add_argument("what", choices=FUZZERS)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--count", type=int, help="the most languages, chains, types or patterns")
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32), help="of the first of them")
    parser.add_argument("--tekken", type=float, default=0.05, help="the part of the languages for 131,072 tokens")
    options = parser.parse_args()
    if options.what == "patterns" and node.missing():
        print(f"nothing to compare with: {node.missing()}")
        return 0
    fuzzer, found = FUZZERS[options.what], 0
    counts, own = fuzzer.Counts(), {"tekken": options.tekken} if options.what == "masks" else {}
    for finding in fuzzer.run(options.seed, 60 * options.minutes, counts, count=options.count, progress=60, **own):
        found += 1
        print(f"FINDING {found}: {finding}", flush=True)
    print(f"from seed {options.seed}: {found} findings; {counts}")
    return found


if __name__ == "__main__":
    sys.exit(main())
