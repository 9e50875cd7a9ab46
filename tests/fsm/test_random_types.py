"""Random pydantic types: what is written validates, what pydantic writes is accepted, and the rest is refused when it is compiled."""

from __future__ import annotations

import pytest

from tests.fuzz.types import SCALARS, Counts, faults_of, run

FIRST_SEEDS = [1, 10_001, 20_001, 30_001, 40_001]


@pytest.mark.parametrize("seed", FIRST_SEEDS)
def test_pydantic_takes_what_is_written_and_what_it_writes_is_accepted(seed: int) -> None:
    counts = Counts()
    assert [*run(seed, 1_000, counts, count=30)] == []
    assert counts.types == 30
    assert counts.refused < 15 < counts.texts
    assert counts.values > 15


@pytest.mark.parametrize("form", ["{}", "dict[{}, int]"])
def test_every_scalar_of_pydantic_is_read_and_written_or_refused(form: str) -> None:
    costly = ("Network", "Dsn", "AnyUrl", "FileUrl", "WebsocketUrl") if form != "{}" else ()
    for source, values in SCALARS.items():
        if source.endswith(costly):
            continue
        made = values if form == "{}" else [f"{{{value}: 1}}" for value in values]
        assert [*faults_of(f"T = {form.format(source)}", made, seed=1)] == [], source
