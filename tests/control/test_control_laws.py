"""Random programs against a plain oracle that keeps nothing but token ids and recomputes everything from them."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlines_cont import Branch, TokenSet, control, models
from outlines_cont.control import Controller, Replay, fixed, fork, gen, label
from outlines_cont.models import HuggingFaceModel
from tests.examples import examples
from tests.fakes import EOS, FakeTokenizer, random_network
from tests.oracle import greedy_ids, next_logits

_FEW = settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
_MAX_FORKS, _MAX_TOKENS = 12, 40


@cache
def _model(family: str) -> HuggingFaceModel:
    return models.from_transformers(random_network(family), FakeTokenizer())


_IDS = st.lists(st.integers(3, 340), min_size=1, max_size=4)
_SETS = st.one_of(st.just(None), st.sets(st.integers(3, 340), min_size=1, max_size=5).map(sorted))


@dataclass(frozen=True)
class Spec:
    """A branch, with a `backtrack` that is cut to what there is."""

    backtrack: int
    samples: bool
    allowed: tuple[int, ...]
    sequences: tuple[tuple[int, ...], ...]

    def branch(self, room: int) -> Branch:
        back = min(self.backtrack, room)
        if not self.samples:
            sequences = [list(self.sequences[0])] if self.sequences else ([] if back else [[77]])
            return Branch(backtrack=back, ff_tokens=sequences)
        mask = TokenSet.of(self.allowed) if self.allowed else TokenSet.of(range(3, 340)) | TokenSet.of([EOS])
        return Branch(backtrack=back, sample_mask=mask, ff_tokens=[list(ids) for ids in self.sequences])


_SPECS = st.builds(
    Spec,
    st.sampled_from([0, 0, 0, 1, 2, 5]),
    st.booleans(),
    st.lists(st.integers(3, 340), max_size=5).map(tuple),
    st.lists(_IDS.map(tuple), max_size=2).map(tuple),
)
_PLANS = st.lists(st.lists(_SPECS, min_size=1, max_size=3), max_size=7)
_FAMILY = st.sampled_from(["llama", "gpt2", "mistral"])


@dataclass
class Planned(Controller):
    """Takes the next line of a plan at each call; forks begin again a few lines further, each at its own."""

    plan: list[list[Spec]]
    room: int  # how many tokens may be rewound, the first of the prompt is not
    at: int = 0

    def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        self.room += len(last_append) - last_backtrack
        self.at += 1 + branch_index
        return planned(self.plan, self.at - 1, self.room)


def planned(plan: list[list[Spec]], at: int, room: int) -> list[Branch]:
    return [spec.branch(room) for spec in plan[at]] if at < len(plan) else []


def expected(model: HuggingFaceModel, plan: list[list[Spec]], ids: list[int], at: int) -> Iterator[tuple[int, ...]]:
    """The final ids of all forks."""
    branches = planned(plan, at, len(ids) - 1)
    if not branches:
        yield tuple(ids)
    for index, branch in enumerate(branches):
        yield from expected(model, plan, followed(model, ids, branch), at + 1 + index)


def followed(model: HuggingFaceModel, ids: Sequence[int], branch: Branch) -> list[int]:
    kept = list(ids[: len(ids) - branch.backtrack])
    if branch.sample_mask is None:
        return kept + (branch.ff_tokens[0] if branch.ff_tokens else [])
    logits = next_logits(model, kept)[-1].tolist()
    token_id = max((i for i in range(len(logits)) if i in branch.sample_mask), key=lambda i: (logits[i], -i))
    return kept + next((list(s) for s in branch.ff_tokens if s[0] == token_id), [token_id])


@_FEW
@given(_FAMILY, st.lists(_PLANS, min_size=1, max_size=3), st.sampled_from(["the name", "a"]))
def test_random_branch_programs_write_what_the_oracle_writes(family: str, plans: list[list[list[Spec]]], prompt: str) -> None:
    model = _model(family)
    start = model.tokenizer.encode(prompt, add_special_tokens=True)
    budget = control.Budget(forks=None)
    programs = [control.start(model, Planned(plan, len(start) - 1), prompt, budget=budget) for plan in plans]
    for plan, program in zip(plans, programs, strict=True):
        result = program.result().check()
        rows = [ended.state.rows[0][0] for ended in result.forks if ended.state is not None]
        assert sorted(expected(model, plan, start, 0)) == sorted(row.token_ids for row in rows)
        replay = Replay(result.events)
        assert replay.texts == {ended.index: ended.text for ended in result.forks}
        for ended, row in zip(result.forks, rows, strict=True):
            written = replay.token_ids[ended.index]
            kept = len(row.token_ids) - len(written)
            assert [*start[:kept], *written] == list(row.token_ids)
            assert len(row.token_ids) == len(row.kinds) == len(row.logprobs) == len(row.sampling_logprobs)
            assert all(logprob == logprob for logprob in row.logprobs)
        wanted = next_logits(model, rows[0].token_ids)[-1].log_softmax(-1)
        assert (result.state.logits[0, 0].log_softmax(-1) - wanted).abs().max() < 1e-8
    del programs, program, result, rows, row, ended
    gc.collect()
    assert model.kv_store.nbytes == 0


_TEXTS = st.sampled_from(["the name", " of", "🙂 é", "a", "\n", ""])
_OPERATIONS = st.one_of(
    st.tuples(st.just("fixed"), _TEXTS),
    st.tuples(st.just("gen"), st.integers(1, 4)),
    st.tuples(st.just("label"), st.none()),
    st.tuples(st.just("follow"), _TEXTS),
    st.tuples(st.just("fork"), st.integers(1, 3)),
)


def _num_forks(operations: Sequence[tuple[str, Any]]) -> int:
    return prod(value for name, value in operations if name == "fork")


# No more forks than the budget of a program allows at once; `Actors` run programs with the default.
_SCRIPTS = st.lists(_OPERATIONS, max_size=8).filter(lambda script: _num_forks(script) <= (control.Budget().forks or 1))


def _writes(model: HuggingFaceModel, operations: Sequence[tuple[str, Any]], ids: list[int]) -> Iterator[tuple[int, ...]]:
    """The final ids of all forks of a script, by token ids alone. `place` is the last label; forks add their number."""

    def go_on(rest: Sequence[tuple[str, Any]], ids: list[int], place: int) -> Iterator[tuple[int, ...]]:
        if not rest:
            yield tuple(ids)
            return
        (name, value), rest = rest[0], rest[1:]
        encode = model.tokenizer.encode_inside
        if name == "fork":
            for index in range(value):
                yield from go_on(rest, [*ids, *encode(f" {index}", ids)], place)
        elif name == "label":
            yield from go_on(rest, ids, len(ids))
        elif name == "gen":
            yield from go_on(rest, [*ids, *greedy_ids(model, ids, value)], place)
        else:
            kept = ids[:place] if name == "follow" else ids
            yield from go_on(rest, [*kept, *encode(value, kept)], min(place, len(kept)))

    yield from go_on(operations, ids, len(ids))


def _script_of(operations: list[tuple[str, Any]]) -> Any:
    async def script() -> None:
        place = label()
        for name, value in operations:
            if name == "fork":
                await fixed(f" {await fork(value)}")
            elif name == "label":
                place = label()
            elif name == "gen":
                await gen(max_tokens=value, name="last")
            else:
                await fixed(value, following=place if name == "follow" else None)

    return script


@_FEW
@given(_FAMILY, st.lists(_SCRIPTS, min_size=1, max_size=3))
def test_random_scripts_write_what_the_oracle_writes(family: str, scripts: list[list[tuple[str, Any]]]) -> None:
    model = _model(family)
    start = model.tokenizer.encode("is", add_special_tokens=True)

    with model.meter() as meter:
        programs = [control.start(model, _script_of(script), "is") for script in scripts]
        results = [program.result().check() for program in programs]
    for operations, result in zip(scripts, results, strict=True):
        rows = [ended.state.rows[0][0] for ended in result.forks if ended.state is not None]
        assert sorted(_writes(model, operations, start)) == sorted(row.token_ids for row in rows)
        replay = Replay(result.events)
        assert replay.texts == {ended.index: ended.text for ended in result.forks}
        assert all(replay.captures.get(ended.index, {}) == ended.captures for ended in result.forks)
    # No token is fed twice, but the last one before a cut behind which nothing is put.
    cuts = [value for script in scripts for name, value in script if name == "follow"]
    assert all(cuts) <= (meter.recomputed_tokens == 0)
    del programs, results, result, rows
    gc.collect()
    assert model.kv_store.nbytes == 0
