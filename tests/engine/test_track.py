"""`Track` against plain lists: whatever is made of a track, it and all others stay as they were."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import pytest

from outlines_cont.engine.track import Track
from outlines_cont.sampling import TokenCounts
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import APPENDED, FORCED, GENERATED, HEALED, WRITTEN, StateRow, counts_of
from tests.examples import first

KINDS = (APPENDED, GENERATED, FORCED, HEALED)


@dataclass(frozen=True)
class Plain:
    """The same in tuples."""

    ids: tuple[int, ...]
    kinds: bytes
    logprobs: tuple[float, ...]
    sampling_logprobs: tuple[float, ...]
    unscored: tuple[int, ...] = ()

    def cut(self, length: int) -> Plain:
        unscored = tuple(i for i in self.unscored if i < length)
        return Plain(self.ids[:length], self.kinds[:length], self.logprobs[:length], self.sampling_logprobs[:length], unscored)


def assert_same(track: Track, plain: Plain) -> None:
    assert track.length == len(track.ids) == len(plain.ids)
    assert (tuple(track.ids), bytes(track.kinds), track.unscored) == (plain.ids, plain.kinds, plain.unscored)
    known = [i for i in range(track.length) if i not in plain.unscored]
    assert [track.logprobs[i] for i in known] == [plain.logprobs[i] for i in known]
    assert [track.sampling_logprob(i) for i in range(track.length)] == [*plain.sampling_logprobs]
    assert [track.was_drawn(i) for i in range(track.length + 2)] == [kind == GENERATED[0] for kind in plain.kinds] + [False, False]
    counts = counts_of(plain.ids, plain.kinds, plain.sampling_logprobs, None)
    assert counted(track.counts) == counted(counts)


def counted(counts: TokenCounts) -> dict[int, tuple[int, int]]:
    table = zip(counts.token_ids.tolist(), counts.in_row.tolist(), counts.generated.tolist(), strict=True)
    return {token_id: (number, generated) for token_id, number, generated in table if number}


def changed(draw: random.Random, track: Track, plain: Plain) -> tuple[Track, Plain]:
    """Return a track that is made of another, and the same of its plain form."""
    what = draw.choice(["append"] * 4 + ["cut", "reopen", "score"])
    length = draw.randint(0, len(plain.ids))
    if what == "cut":
        return track.cut(length), plain.cut(length)
    if what == "reopen":
        return track.reopened(length), plain.cut(length)
    if what == "score" and plain.unscored:
        number = draw.randint(1, len(plain.unscored))
        found = {i: -float(plain.ids[i]) for i in plain.unscored[:number]}  # what is the same for all that share them
        logprobs = tuple(found.get(i, x) for i, x in enumerate(plain.logprobs))
        return track.scored([*found.values()]), replace(plain, logprobs=logprobs, unscored=plain.unscored[number:])
    token_id, kind = draw.randrange(9), draw.choice(KINDS)
    logprob, sampling = (-float(token_id), -draw.random()) if kind == GENERATED else (0.0, 0.0)
    unscored = plain.unscored
    if kind == FORCED and draw.random() < 0.7:
        logprob, unscored = math.nan, (*unscored, len(plain.ids))
        track = track.changed(unscored=unscored)
    longer = Plain((*plain.ids, token_id), plain.kinds + kind, (*plain.logprobs, logprob), (*plain.sampling_logprobs, sampling), unscored)
    return track.append(token_id, kind, logprob, sampling), longer


@pytest.mark.parametrize("seed", first(12, range(60)))
def test_tracks_that_are_made_of_one_another_never_change(seed: int) -> None:
    draw = random.Random(seed)
    prompt = [draw.randrange(9) for _ in range(draw.randint(0, 5))]
    source = StateRow.of_prompt(prompt, RandomStream(seed))
    zeros = (0.0,) * len(prompt)
    known = [(Track(source), Plain(tuple(prompt), source.kinds, zeros, zeros))]
    for _ in range(60):
        # Mostly the last one, as a row does; else any other, as forks and checkpoints do.
        at = -1 if draw.random() < 0.7 else draw.randrange(len(known))
        known.append(changed(draw, *known[at]))
        assert_same(*known[-1])
        assert_same(*draw.choice(known))
    for track, plain in known:
        assert_same(track, plain)
        written = track.written_to(source, has_failed=False)
        assert (written.token_ids, written.kinds, written.unscored) == (plain.ids, plain.kinds, plain.unscored)


def test_an_append_at_the_tip_copies_nothing() -> None:
    tip = Track(StateRow.of_prompt([1, 2], RandomStream(0)))
    longer = tip.append(3, GENERATED, -1.0, -1.0)
    assert longer.ids is tip._columns.ids, "the column has grown"
    other = tip.append(4, GENERATED, -1.0, -1.0)
    assert (tip.ids, longer.ids, other.ids) == ([1, 2], [1, 2, 3], [1, 2, 4])


def test_tops_begin_where_they_are_asked_for() -> None:
    plain = Track(StateRow.of_prompt([1, 2], RandomStream(0)))
    with_tops = plain.with_tops(1).append(3, GENERATED, -1.0, -1.0, ((3, -1.0),))
    assert with_tops.tops == [(), (), ((3, -1.0),)]
    assert with_tops.cut(2).append(4, GENERATED, -1.0, -1.0).tops == [(), (), ()]
    assert plain.append(5, WRITTEN[:1], -1.0, -1.0).tops == []
