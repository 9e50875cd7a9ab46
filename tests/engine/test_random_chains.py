"""Random chains of pieces, the same ones in every run of CI, against fresh runs; `python -m tests.fuzz chains` goes on for longer."""

from __future__ import annotations

from tests.fuzz.chains import Counts, run
from tests.fuzz.seeds import first_seed


def test_pieces_of_random_chains_are_those_of_fresh_runs() -> None:
    counts, seed = Counts(), first_seed()
    findings = list(run(seed, 60, counts, count=6))
    assert not findings, f"repeat with `python -m tests.fuzz chains --seed {seed}`\n" + "\n".join(findings)
    assert counts.pieces > 3
    assert counts.rows >= counts.pieces - counts.refused
