"""Fuzzing with atheris, which is no dependency: `pip install atheris`, then

    python -m tests.fuzz regex --seconds 300 --folder /tmp/fuzz
    python -m tests.fuzz schema --replay /tmp/fuzz/regex/finding-...

and without it, for masks of random languages against the plain loop (`masks.py`),

    python -m tests.fuzz masks --minutes 60
    python -m tests.fuzz masks --seed 123 --count 1

Targets of the first kind are those of `targets.py`. Each different finding is printed once and its input is kept, and the run goes on.
An input that takes more than a second of processor time is a finding, too.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random, SystemRandom
from time import process_time
from types import FrameType

MAX_SECONDS = 1.0
STOP_AFTER = 5.0


class TooSlow(BaseException):
    """The input takes too long."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooSlow


class Recorder:
    """Runs a target and keeps its findings, one for each place where it fails."""

    def __init__(self, target: Callable[[bytes], None], folder: Path) -> None:
        self._target, self._folder = target, folder
        self._known = set[tuple[str, str]]()

    def __call__(self, data: bytes) -> None:
        """Run one input."""
        signal.setitimer(signal.ITIMER_VIRTUAL, STOP_AFTER)
        start = process_time()
        try:
            self._target(data)
        except AssertionError as error:
            self._keep(data, "wrong", str(error).split(" ")[0][:20], str(error))
        except (Exception, TooSlow) as error:
            places = traceback.extract_tb(error.__traceback__)
            inside = [f"{p.name}:{p.lineno}" for p in places if "/fsm/" in p.filename] or ["outside"]
            where = inside[0] if isinstance(error, TooSlow) else inside[-1]
            self._keep(data, type(error).__name__, where, f"{error} {' < '.join(reversed(inside))}")
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        seconds = process_time() - start
        if MAX_SECONDS < seconds < STOP_AFTER:
            self._keep(data, "slow", str(round(seconds)), f"{seconds:.1f} s")

    def _keep(self, data: bytes, kind: str, key: str, text: str) -> None:
        if (kind, key) in self._known or len(self._known) > 200:
            return
        self._known.add((kind, key))
        path = self._folder / f"finding-{kind}-{hashlib.sha256(data).hexdigest()[:10]}"
        path.write_bytes(data)
        print(f"FINDING {kind} {path.name}: {text[:600]}", flush=True)


def _masks(arguments: list[str]) -> int:
    """Compare masks for some minutes; the number of different findings."""
    from tests.fuzz.masks import Counts, run

    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz masks", description="Compare masks with the plain loop over all tokens."
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--count", type=int, help="the most languages")
    parser.add_argument(
        "--seed",
        type=int,
        default=SystemRandom().getrandbits(32),
        help="of the first language",
    )
    parser.add_argument(
        "--tekken", type=float, default=0.05, help="the part of the languages that is for 131,072 tokens"
    )
    options = parser.parse_args(arguments)
    counts, found = Counts(), 0
    for finding in run(
        options.seed, 60 * options.minutes, counts, count=options.count, tekken=options.tekken, progress=60
    ):
        found += 1
        print(f"FINDING {finding}", flush=True)
    print(f"from seed {options.seed}: {found} findings; {counts}")
    return found


def main() -> None:
    """Fuzz one target, or run one input again."""
    if sys.argv[1:2] == ["masks"]:
        sys.exit(_masks(sys.argv[2:]))
    import atheris

    with atheris.instrument_imports(include=["fsm"]):
        from tests.fuzz.targets import SEEDS, TARGETS
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--folder", type=Path, default=Path("fuzz"), help="where inputs and findings are kept")
    parser.add_argument("--replay", type=Path, help="run this input and nothing else")
    options = parser.parse_args()
    if options.replay:
        TARGETS[options.target](options.replay.read_bytes())
        return
    folder, corpus = options.folder / options.target, options.folder / options.target / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    source = Random(0)
    for number, seed in enumerate([*SEEDS, *(source.randbytes(source.randint(1, 60)) for _ in range(60))]):
        (corpus / f"seed-{number}").write_bytes(seed)
    signal.signal(signal.SIGVTALRM, _stop)
    arguments = [sys.argv[0], f"-max_total_time={options.seconds}", "-timeout=60", "-max_len=200", "-len_control=0"]
    atheris.Setup([*arguments, str(corpus)], Recorder(TARGETS[options.target], folder))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
