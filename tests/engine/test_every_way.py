"""Every feature in every way to write a piece: row by row, in parts through files, as a stream that is left, drafted, after faults."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fsm
from outlines_cont import Guidance, SequenceState, StreamEvent, Thinking, continuous, engine_of, generate, policies
from outlines_cont.models import HuggingFaceModel
from outlines_cont.samplers import DRY, XTC, Mirostat, greedy, multinomial
from outlines_cont.state.row import HEALED, StateRow
from tests.engine.test_two_features import HalfRight
from tests.examples import first
from tests.fakes import END_OF_TURN, FAMILIES, FakeTokenizer, failing, random_model

PROMPTS, SEEDS, MAX_TOKENS = ["say th", 'a red "'], [1, 2], 12
DRAWN = multinomial(2, temperature=1.5)
LOOKING_BACK = multinomial(2, dry=DRY(3.0, 1.5, 1), temperature=1.5, mirostat=Mirostat(2.0, 0.6), xtc=XTC(0.06, 0.6), frequency_penalty=0.4)
LETTERS = {i: 4.0 for i, data in enumerate(FakeTokenizer().token_bytes) if data and (data.islower() or data == b" ")}
_ITEM = {"enum": [1, 2, 12]}
# An automaton does not count items by place and value, so that this is checked.
UNIQUE = {"type": "array", "prefixItems": [_ITEM], "items": _ITEM, "minItems": 2, "maxItems": 3, "uniqueItems": True}
GRAMMAR = 'start: item ("," item)*\nitem: "red" | "green" | /[0-9]+/'
END, START = fsm.special("<end>"), fsm.special("<s>")
Make = Callable[[HuggingFaceModel, Any], Any]


@dataclass(frozen=True)
class Feature:
    """What makes a generator of a model and a sampler, and the options of its calls."""

    make: Make
    options: dict[str, Any] = field(default_factory=dict)
    sampler: Any = DRAWN

    @property
    def is_free(self) -> bool:
        """Whether the text may end inside a token, so that one that was cut may be told by another token."""
        return self.make is free


def text(model: HuggingFaceModel, sampler: Any) -> Any:
    return generate.text(model, sampler=sampler)


def free(model: HuggingFaceModel, sampler: Any) -> Any:
    return generate.regex(model, "[a-z]+(, [a-z]+)*", sampler=sampler, end="free")


def thinking(end: str) -> Make:
    """What thinks up to a mark before it answers."""
    thoughts = Thinking(begin="[T]", end=end, max_tokens=15)
    return lambda model, sampler: generate.regex(model, "[a-z]{4,20}", sampler=sampler, thinking=thoughts)


FEATURES: dict[str, Feature] = {
    "text": Feature(text),
    "steps that look at the row": Feature(text, sampler=LOOKING_BACK),
    "forced text": Feature(lambda model, sampler: generate.regex(model, "[ab](: red (blue|black) [ab]){1,3}", sampler=sampler)),
    "a pattern": Feature(lambda model, sampler: generate.regex(model, "[a-e]{1,3}( [a-e]{1,3}){2,6}", sampler=sampler, force=False)),
    "JSON": Feature(lambda model, sampler: generate.json(model, {"enum": [{"name": "red", "age": 12}, [1, 12, 20]]}, sampler=sampler)),
    "a grammar": Feature(lambda model, sampler: generate.cfg(model, GRAMMAR, sampler=sampler)),
    "checks": Feature(lambda model, sampler: generate.json(model, UNIQUE, sampler=sampler)),
    "special tokens": Feature(lambda model, sampler: generate.fsm(model, "yes" + END + fsm.regex("[a-z]{2,9}") + START, sampler=sampler)),
    "a free end": Feature(free, sampler=multinomial(2, logit_bias=LETTERS)),
    "a free end, greedy": Feature(free, sampler=greedy(logit_bias=LETTERS)),
    "stops": Feature(text, {"stop_at": ["e", " t", "日"], "keep_stop": True, "stop_token_ids": [END_OF_TURN]}),
    "bans": Feature(text, {"policies": [policies.ban({"a": 0, "e": 0.5, "in": 0, "o": 0, "the": 0}, max_retries=None)]}),
    "bans with alternatives": Feature(text, {"policies": [policies.ban([*"aeinorst"], alternatives=3)]}, greedy()),
    "replacements": Feature(text, {"policies": [policies.replace({"e": "ab", "n": "o"}, at_most=2)]}),
    "healing": Feature(text, {"heal": True}),
    "guidance": Feature(text, {"guidance": [Guidance("red is green", 2.5), Guidance([70, 71], -0.5)]}),
    "thoughts": Feature(thinking("e")),
    "thoughts that end by a token": Feature(thinking("<end>\n")),
}  # fmt: skip


@cache
def model_of(name: str) -> HuggingFaceModel:
    """A model of each family in turn."""
    return random_model([*FAMILIES][[*FEATURES].index(name) % len(FAMILIES)])


def writing(name: str) -> Any:
    return continuous(FEATURES[name].make(model_of(name), FEATURES[name].sampler))


def options_of(name: str, batch: int | None = None) -> dict[str, Any]:
    """The options of a call, or those of one of its entries."""
    given = FEATURES[name].options | {"max_tokens": MAX_TOKENS}
    if batch is not None and "guidance" in given:
        given["guidance"] = given["guidance"][batch]
    return given


@cache
def whole(name: str) -> SequenceState:
    return writing(name)(PROMPTS, rng=SEEDS, **options_of(name))


def rows_of(state: SequenceState) -> list[StateRow]:
    return [row for group in state.rows for row in group]


def compare(name: str, rows: Iterable[StateRow | None]) -> None:
    for row, other in zip(rows, rows_of(whole(name)), strict=True):
        if row is None or (FEATURES[name].is_free and other.finish_reason == "length"):
            continue
        assert (row.token_ids, row.kinds, row.finish_reason) == (other.token_ids, other.kinds, other.finish_reason)
        assert (row.value, type(row.error), row.stream) == (other.value, type(other.error), other.stream)
        assert row.weight == pytest.approx(other.weight, abs=1e-6)
        assert row.logprobs == pytest.approx(other.logprobs, abs=1e-6)
        assert row.sampling_logprobs == pytest.approx(other.sampling_logprobs, abs=1e-6)


def each(*but: str) -> pytest.MarkDecorator:
    """For each feature but some."""
    return pytest.mark.parametrize("name", [name for name in FEATURES if name not in but])


@each()
def test_the_features_do_something(name: str) -> None:
    plain = continuous(text(model_of(name), FEATURES[name].sampler))(PROMPTS, rng=SEEDS, max_tokens=MAX_TOKENS)
    assert name in ("text", "steps that look at the row") or plain != whole(name)
    assert all(row.error is None for row in rows_of(whole(name)))
    if name in ("checks", "bans", "bans with alternatives"):
        assert int(whole(name).retries.sum()) > 0


@each()
def test_rows_are_what_they_are_alone_and_as_tasks(name: str) -> None:
    write = writing(name)
    compare(name, [row for at, prompt in enumerate(PROMPTS) for row in rows_of(write(prompt, rng=[SEEDS[at]], **options_of(name, at)))])

    async def tasks() -> list[SequenceState]:
        return await asyncio.gather(*(write.acall(prompt, rng=[SEEDS[at]], **options_of(name, at)) for at, prompt in enumerate(PROMPTS)))

    compare(name, [row for state in asyncio.run(tasks()) for row in rows_of(state)])


@each("bans with alternatives")  # the ways that were tried are known within a call
def test_parts_that_are_saved_and_loaded_are_the_whole(name: str, tmp_path: Path) -> None:
    write, sizes = writing(name), [1, 2, 3, 6]
    assert sum(sizes) == MAX_TOKENS
    state = write(PROMPTS, rng=SEEDS, **options_of(name) | {"max_tokens": sizes[0]})
    for size in sizes[1:]:
        state.save(tmp_path / "state")
        loaded = SequenceState.load(tmp_path / "state", state.model)
        assert (loaded, loaded.spans, loaded.thoughts) == (state, state.spans, state.thoughts)
        assert [row.piece for row in rows_of(loaded)] == [row.piece for row in rows_of(state)]
        state = write.resume(loaded, max_tokens=size)
    if name == "replacements":  # what is put in is no part of the length, so that parts go on behind the whole
        for row, other in zip(rows_of(state), rows_of(whole(name)), strict=True):
            assert row.token_ids[: len(other.token_ids)] == other.token_ids
    else:
        compare(name, rows_of(state))
    assert state.thoughts == whole(name).thoughts


def compare_events(name: str, events: Iterable[StreamEvent], state: SequenceState, *, retract: bool) -> None:
    """Compare what events have told with the state that they end with, and that with the whole."""
    told: dict[tuple[int, int], list[int]] = {}
    texts: dict[tuple[int, int, bool], str] = defaultdict(str)
    for event in events:
        assert retract or not event.retract
        assert not (event.is_thought and event.finish_reason)
        key, ids = (event.batch, event.sample, event.is_thought), told.get((event.batch, event.sample), [])
        texts[key] = texts[key][: len(texts[key]) - event.retract] + event.text
        told[event.batch, event.sample] = [*ids[: len(ids) - event.retract_tokens], *event.token_ids]
    compare(name, rows_of(state))
    assert state == whole(name)
    for (batch, sample), ids in told.items():
        assert texts[batch, sample, True] == (state.thoughts[batch][sample] or "")
        row = whole(name).rows[batch][sample]
        assert row.piece is not None
        start = row.piece.start if row.piece.thoughts is None else row.piece.thoughts.start
        assert [*row.token_ids[start:]] == ids
        data = state.tokenizer.text_bytes(row.token_ids[row.piece.start :])[row.piece.healed :]
        assert data.decode(errors="replace") == texts[batch, sample, False]


@each()
@pytest.mark.parametrize("retract", [False, True])
def test_events_tell_what_a_call_writes(name: str, retract: bool) -> None:
    stream = writing(name).stream(PROMPTS, rng=SEEDS, retract=retract, **options_of(name))
    compare_events(name, [*stream], stream.state, retract=retract)


def num_counted(row: StateRow) -> int:
    """The number of tokens that `max_tokens` counts: without thoughts, and what was healed."""
    assert row.piece is not None
    return 0 if row.piece.is_thinking else len(row.token_ids) - row.piece.start - row.kinds.count(HEALED, row.piece.start)


def resumed(name: str, state: SequenceState) -> list[StateRow | None]:
    """The rows of a stream that was left, each resumed alone; None for one that may have been about to go back."""
    write, found = writing(name), list[StateRow | None]()
    for batch, sample in itertools.product(range(state.batch_size), range(state.num_samples)):
        alone = state.take([(batch, sample)])
        (row,) = rows_of(alone)
        assert row.piece is not None
        left = MAX_TOKENS - num_counted(row)
        if left > 0:
            found += rows_of(write.resume(alone, max_tokens=left))
        else:
            found.append(row if row.finish_reason != "length" else None)
    return found


@each("bans with alternatives")  # what was tried is no part of a piece that is resumed
@pytest.mark.parametrize("count", first(1, [7, 0]))
def test_a_stream_that_is_left_at_any_moment_is_resumed(name: str, count: int) -> None:
    write = writing(name)
    draft = HalfRight([row.token_ids for row in rows_of(whole(name))]) if count else None
    with write.stream(PROMPTS, rng=SEEDS, draft=draft, **options_of(name)) as stream:
        for _ in itertools.islice(stream, count + 1):
            pass
    compare(name, resumed(name, stream.state))


@each("bans with alternatives")
@pytest.mark.parametrize("count", first(1, [3, 0]))
def test_a_stream_that_is_left_goes_on_as_a_stream_that_tells_the_whole_span(name: str, count: int) -> None:
    """Half of the rows take text back, the others hold it."""
    write = writing(name)
    with write.stream(PROMPTS, rng=SEEDS, **options_of(name)) as stream:
        for _ in itertools.islice(stream, count + 1):
            pass
    for batch, sample in itertools.product(range(len(PROMPTS)), range(stream.state.num_samples)):
        alone = stream.state.take([(batch, sample)])
        (row,) = rows_of(alone)
        assert row.piece is not None
        left = max(MAX_TOKENS - num_counted(row), 1)
        wanted = write.resume(alone, max_tokens=left)
        rest = write.stream(alone, resume=True, retract=batch != sample, max_tokens=left)
        text, ids = "", list[int]()
        for event in (event for event in rest if not event.is_thought):
            text = text[: len(text) - event.retract] + event.text
            ids = [*ids[: len(ids) - event.retract_tokens], *event.token_ids]
        assert rest.state == wanted
        (after,) = rows_of(wanted)
        assert after.piece is not None
        assert [*after.token_ids[after.piece.start :]] == ids
        assert alone.tokenizer.text_bytes(ids)[after.piece.healed :].decode(errors="replace") == text


@each()
def test_a_draft_changes_nothing(name: str) -> None:
    for draft in ("lookup", HalfRight([row.token_ids for row in rows_of(whole(name))])):
        compare(name, rows_of(writing(name)(PROMPTS, rng=SEEDS, draft=draft, **options_of(name))))


@each()
def test_forwards_that_fail_or_are_small_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for at in (0, 1):  # while several rows run: one that is alone would fail
        with failing(model_of(name), at):
            compare(name, rows_of(writing(name)(PROMPTS, rng=SEEDS, **options_of(name))))
    monkeypatch.setattr(engine_of(model_of(name)), "max_batch_tokens", 5)
    compare(name, rows_of(writing(name)(PROMPTS, rng=SEEDS, **options_of(name))))
