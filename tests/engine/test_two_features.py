"""Every pair of features on one sequence writes what the plain, slow loop writes; and pairs that once did not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fsm
from fsm.terms.node import checked, literal, sequence
from outlines_cont import (
    BatchedExecutor,
    Branch,
    Guidance,
    SequenceState,
    TokenSet,
    continuous,
    control,
    engine_of,
    generate,
    models,
    policies,
    samplers,
)
from outlines_cont.errors import IncompleteOutput
from outlines_cont.generate import Generator
from outlines_cont.generation.options import Options
from outlines_cont.models import HuggingFaceModel
from outlines_cont.samplers import DRY, XTC, Mirostat, greedy
from outlines_cont.state.row import WRITTEN, StateRow
from tests.engine.test_engine_loop import Forking, _ids
from tests.examples import examples
from tests.fakes import EOS, FakeTokenizer, random_model, random_network, saying, scripted_model
from tests.oracle import next_logits
from tests.plain_loop import PlainRow
from tests.sampling_oracle import plain_law

FEATURES = [
    "constraint", "checks", "stop", "heal", "ban", "replace", "stream", "fork", "beam", "penalties", "guidance", "draft",
    "prefix cache",
]  # fmt: skip
# A search cannot be streamed, as it chooses at the end, and has no penalties and no guidance.
NOT_WITH_BEAM = {"stream", "penalties", "guidance"}
PAIRS = [pair for pair in combinations(FEATURES, 2) if "beam" not in pair or not NOT_WITH_BEAM & {*pair}]
# Seed 0 is greedy: a search, which draws nothing, and the pairs of what takes tokens back; what is drawn finds the rest.
CASES: list[Any] = [(pair, 1) for pair in PAIRS if "beam" not in pair]
CASES += [(pair, 0) for pair in PAIRS if "beam" in pair or {*pair} <= {"ban", "stop", "checks"}]
CASES += [pytest.param(pair, 0, marks=pytest.mark.slow) for pair in PAIRS if {"ban", "stop"} & {*pair} and (pair, 0) not in CASES]
_ITEM = {"enum": [1, 2, 12]}
# An automaton does not count items by place and value, so that this is checked.
UNIQUE = {"type": "array", "prefixItems": [_ITEM], "items": _ITEM, "minItems": 2, "maxItems": 3, "uniqueItems": True}
PATTERN = "[a-e]{1,3}( [a-e]{1,3}){0,3}(x|yes|no)"
PROMPTS = ["the name", "a red"]
MAX_TOKENS = 9
GUIDANCE = [Guidance("red is green", 1.8), Guidance([70, 71], -0.7)]


@pytest.fixture(scope="module")
def model() -> HuggingFaceModel:
    return random_model()


@pytest.fixture(scope="module")
def reusing() -> HuggingFaceModel:
    """The same model, where few tokens are worth reusing."""
    model = models.from_transformers(random_network("llama"), FakeTokenizer(), prefix_cache_bytes=2**20)
    model.prefix_cache.min_tokens = 2
    return model


def generator_of(model: HuggingFaceModel, pair: tuple[str, str], sampler: Any) -> Generator:
    """What writes: free text, a pattern, JSON with a check, or a pattern and JSON."""
    if {"constraint", "checks"} <= {*pair}:
        return generate.fsm(model, fsm.regex("[ab]{1,2}: ") + fsm.json_schema(UNIQUE), sampler=sampler, force=False, end="eos")
    if "checks" in pair:
        return generate.json(model, UNIQUE, sampler=sampler, force=False)
    if "constraint" in pair:
        return generate.regex(model, PATTERN, sampler=sampler, force=False, end="eos")
    return generate.text(model, sampler=sampler)


def options_of(pair: tuple[str, str], text: str, wanted: list[tuple[int, ...]]) -> dict[str, Any]:
    """The options of the call; stops, phrases, replacements and guesses are parts of the text that is written without them."""
    options: dict[str, Any] = {"max_tokens": MAX_TOKENS}
    more = []
    if "stop" in pair:
        options["stop_at"] = [part for part in (text[4:6], text[7:8], "zz") if part]
    if "heal" in pair:
        options["heal"] = True
    if "ban" in pair:
        more.append(policies.ban([part for part in (text[1:3], text[5:6], "q") if part.strip()] or ["q"], max_retries=40))
    if "replace" in pair:
        more.append(policies.replace({text[2:4] or "q": "ab"}, at_most=2))
    if "guidance" in pair:
        options["guidance"] = GUIDANCE
    if "draft" in pair:
        options["draft"] = HalfRight(wanted)
    return options | {"policies": more}


def guidance_of(pair: tuple[str, str], start: SequenceState) -> list[Guidance] | None:
    return GUIDANCE[: start.batch_size] if "guidance" in pair else None


class HalfRight:
    """A draft that knows what is written without the other feature, and is wrong now and then."""

    def __init__(self, texts: list[tuple[int, ...]]) -> None:
        self.texts, self.calls = texts, 0

    def propose(self, token_ids: Sequence[int]) -> list[int]:
        self.calls += 1
        found = next((text for text in self.texts if text[: len(token_ids)] == tuple(token_ids)), tuple(token_ids) * 2)
        rest = [*found[len(token_ids) :]]
        return rest if self.calls % 3 else [*rest[:1], 70, *rest[2:]]


def sampler_of(pair: tuple[str, str], seed: int) -> Any:
    penalties: dict[str, Any] = {"repetition_penalty": 1.5, "frequency_penalty": 0.7} if "penalties" in pair else {}
    if "beam" in pair:
        return samplers.beam_search(1)
    if seed == 0:
        return samplers.greedy(**penalties)
    if "penalties" in pair:  # all that looks at the row
        penalties |= {"dry": DRY(2.0, allowed_length=1), "mirostat": Mirostat(2.5, 0.5), "xtc": XTC(0.05, 0.6)}
    return samplers.multinomial(2 if "fork" in pair else 1, temperature=2.0, top_p=0.97, **penalties)


def start_of(model: HuggingFaceModel, pair: tuple[str, str]) -> SequenceState:
    return _start(model, "prefix cache" in pair, "fork" in pair)


@cache
def _start(model: HuggingFaceModel, is_long: bool, is_forked: bool) -> SequenceState:
    """What the piece begins after: two prompts, with `fork` two branches of each that something was written in."""
    first = continuous(generate.text(model, sampler=samplers.multinomial(temperature=2.0)))
    # What a healed prompt begins with must be worth reusing.
    prompts = [f"{prompt} of the red" for prompt in PROMPTS] if is_long else PROMPTS
    state = first(prompts, max_tokens=2, rng=4)
    return state.fork(2) if is_forked else state


@pytest.mark.parametrize(("pair", "seed"), CASES, ids=lambda case: "-".join(case) if isinstance(case, tuple) else None)
def test_two_features_write_what_the_plain_loop_writes(
    model: HuggingFaceModel, reusing: HuggingFaceModel, pair: tuple[str, str], seed: int
) -> None:
    sampler = sampler_of(pair, seed)
    model = reusing if "prefix cache" in pair else model
    generator, start = generator_of(model, pair, sampler), start_of(model, pair)
    if "beam" in pair:
        start = start.take([(0, 0)]) if "fork" not in pair else start.take([(0, 1)])
    plain = continuous(generator)(start, max_tokens=MAX_TOKENS, guidance=guidance_of(pair, start))
    tokens = [row.token_ids for group in plain.rows for row in group]
    options = options_of(pair, str(plain.take([(0, 0)]))[len(str(start.take([(0, 0)]))) :], tokens)
    hits = model.prefix_cache.hits
    state = written(generator, start.detach_cache() if "prefix cache" in pair else start, options, pair)
    assert (model.prefix_cache.hits > hits) == ("prefix cache" in pair)
    steering = sampler if "beam" not in pair else samplers.greedy()
    for batch, (group, sources) in enumerate(zip(state.rows, start.rows, strict=True)):
        for row, source in zip(group, sources, strict=True):
            wanted = plain_row(model, generator, steering, source, options, batch).run()
            assert row.piece is not None
            assert (wanted.ids, wanted.reason) == ([*row.token_ids[row.piece.start :]], row.finish_reason), wanted.error
            assert wanted.error == (type(row.error).__name__ if row.error is not None else "")
            assert wanted.retries == row.piece.retries
            assert wanted.stream.drawn == row.stream.drawn or "beam" in pair


def written(generator: Generator, start: SequenceState, options: dict[str, Any], pair: tuple[str, str]) -> SequenceState:
    """Run the engine; with `stream` through events that take back, which must tell what stands in the state."""
    if "stream" not in pair:
        return continuous(generator)(start, **options)
    stream = continuous(generator).stream(start, retract=True, **options)
    texts: dict[tuple[int, int], str] = {}
    for event in stream:
        place = event.batch, event.sample
        before = texts.get(place, "")
        texts[place] = before[: len(before) - event.retract] + event.text
    state = stream.state
    held = continuous(generator).stream(start, **options)
    shown = {}
    for event in held:
        assert not event.retract
        shown[event.batch, event.sample] = shown.get((event.batch, event.sample), "") + event.text
    for (b, s), text in texts.items():
        row = state.rows[b][s]
        assert row.piece is not None
        assert (
            text == shown[b, s] == state.tokenizer.text_bytes(row.token_ids[row.piece.start :])[row.piece.healed :].decode(errors="replace")
        )
    return state


def plain_row(
    model: HuggingFaceModel, generator: Generator, sampler: Any, source: StateRow, options: dict[str, Any], batch: int
) -> PlainRow:
    """The plain loop over one row."""
    kinds = [kind in WRITTEN for kind in source.kinds]
    steering = generator.policies(Options.of(options))
    negative = None
    if "guidance" in options:
        prompt, scale = GUIDANCE[batch].negative_prompt, GUIDANCE[batch].scale
        negative = (model.tokenizer.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt, scale)
    return PlainRow(
        model, source.token_ids, kinds, steering, sampler, source.stream, options["max_tokens"], heal="heal" in options, negative=negative
    )


# -- the engine --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_beams_that_go_on_are_the_same_however_few_rows_may_run(monkeypatch: pytest.MonkeyPatch, max_rows: int) -> None:
    model, search = random_model(), samplers.beam_search(4)
    first = continuous(generate.regex(model, "[a-d]{3}", sampler=search, force=False))
    second = continuous(generate.regex(model, "[abn]{4}", sampler=search, force=False))
    prompts = ["the name", "a", "red or blue"]
    wanted = second(first(prompts))
    monkeypatch.setattr(engine_of(model), "max_rows", max_rows)
    assert [list(wanted), wanted.weights.tolist()] == [list(found := second(first(prompts))), found.weights.tolist()]


@pytest.mark.parametrize("sampler", [greedy(repetition_penalty=1.6), greedy(frequency_penalty=2.0, presence_penalty=1.0)], ids=str)
def test_forks_are_penalised_by_what_each_of_them_holds(sampler: samplers.Greedy) -> None:
    model, prompt = random_model(), _ids("the name the")
    first = [model.tokenizer.encode(letter)[0] for letter in "xyz"]
    controller = Forking([Branch(sample_mask=TokenSet.of([token_id])) for token_id in first])
    state = control.run(model, controller, "the name the", sampler=sampler).state
    assert [row.token_ids[len(prompt) + 2] for row in state.rows[0]] == first
    for row in state.rows[0]:
        written = list(row.token_ids[len(prompt) :])
        assert len(written) >= 4
        for at in range(3, len(written)):
            before = prompt + written[:at]
            logits = next_logits(model, before)[-1].double().tolist()
            assert written[at] == int(plain_law(logits, sampler.params, before, written[:at]).argmax())


def test_the_end_of_a_text_is_no_token_of_its_length() -> None:
    """With a length penalty of 1 the text that goes on is better: -1.72 / 2 beats -1.67 / 1."""
    tokenizer = FakeTokenizer()
    (x,) = tokenizer.encode("x")
    seldom = dict.fromkeys(range(len(tokenizer.token_bytes)), -1e4)

    def script(ids: list[int]) -> dict[int, float]:
        written = tokenizer.decode(ids).partition(">")[2]
        return {"": {x: 5.4}, "x": seldom | {EOS: 0.0, x: -0.05}, "xx": seldom | {EOS: 0.0}}.get(written, {})

    write = generate.text(scripted_model(script), sampler=samplers.beam_search(1, length_penalty=1.0))
    assert write("q>", max_tokens=3) == "xx"


# -- checks, stops, forced text ----------------------------------------------------------------------------------------


class Unlike:
    """A text is none of those that are bad; what was asked is kept."""

    telling_bytes = frozenset[int]()

    def __init__(self, bad: set[bytes]) -> None:
        self.bad, self.asked = bad, list[bytes]()

    def holds(self, data: bytes) -> bool:
        self.asked.append(data)
        return data not in self.bad

    def fault(self, data: bytes) -> int | None:
        return None

    def __str__(self) -> str:
        return "the text is good"


@pytest.mark.parametrize("bad", [set(), {b"aaa"}, {b"aaa", b"aab", b"aac"}, {b"aaa", b"aab", b"aba", b"abb"}])
def test_how_often_one_value_failed_says_nothing_of_the_next(bad: set[bytes]) -> None:
    """What is tried for the second value does not depend on what was tried for the first."""
    ids = {letter: FakeTokenizer().encode(letter)[0] for letter in "abc"}
    model = scripted_model(lambda _: {ids["a"]: 3.0, ids["b"]: 2.0, ids["c"]: 1.0})
    text = fsm.regex("[abc]{3}").node

    def tried(first: set[bytes]) -> tuple[str, list[bytes]]:
        checks = Unlike(first), Unlike({b"aaa", b"aab"})
        parts = [literal(b"<"), checked(text, checks[0]), literal(b","), checked(text, checks[1]), literal(b">")]
        value = generate.fsm(model, fsm.Expression(sequence(parts)))("q>", max_tokens=60)
        return value, checks[1].asked

    value, asked = tried(bad)
    assert value[1:4].encode() not in bad
    assert value[5:8].encode() not in {b"aaa", b"aab"}
    assert tried(set())[1] == asked


@settings(max_examples=examples(12), deadline=None)
@given(st.text("abn the", min_size=1, max_size=6), st.integers(1, 6), st.booleans())
def test_a_stop_text_at_the_border_of_a_token_costs_none_before_it(prompt: str, at: int, keep: bool) -> None:
    """What stands before it keeps its log-probabilities, its weight and its cache."""
    model = random_model()
    whole = continuous(generate.text(model))(prompt, max_tokens=8)
    start = len(model.tokenizer.encode(prompt, add_special_tokens=True))
    ids = whole.token_ids[0, 0].tolist()
    spell = model.tokenizer.text_bytes
    try:
        stop = spell(ids[start + at : start + at + 2]).decode()
        before = spell(ids[start : start + at]).decode()
    except UnicodeDecodeError:
        return
    if not stop or stop in before + stop[:-1]:
        return
    cut = continuous(generate.text(model))(prompt, max_tokens=8, stop_at=stop)
    if len(str(cut)) - len(prompt) != len(before):
        return  # it was found inside what stands before, too
    assert ids[: start + at] == cut.token_ids[0, 0].tolist()
    assert whole.logprobs[0, 0, : start + at].tolist() == pytest.approx(cut.logprobs[0, 0].tolist(), abs=1e-6, nan_ok=True)
    assert float(cut.weights) == pytest.approx(float(whole.logprobs[0, 0, start : start + at].sum()), abs=1e-5)
    assert int(cut.cached) == start + at


class Odd:
    """A number is odd."""

    telling_bytes = frozenset[int]()

    def holds(self, data: bytes) -> bool:
        return int(data) % 2 == 1

    def fault(self, data: bytes) -> int | None:
        return None

    def __str__(self) -> str:
        return "the number is odd"


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 49999), st.text("0123456789", min_size=1, max_size=2), st.booleans())
def test_what_stands_before_a_stop_text_is_a_value_where_it_conforms(half: int, stop: str, is_checked: bool) -> None:
    """With checks, which the automaton does not hold, as without them."""
    number, language = str(2 * half + 1), fsm.regex("[0-9]{1,5}")
    model = scripted_model(saying(number))
    kept = number.partition(stop)[0]
    write = generate.fsm(model, fsm.Expression(checked(language.node, Odd())) if is_checked else language)
    conforms = bool(kept) and (not is_checked or int(kept) % 2 == 1)
    state = continuous(write)("q>", stop_at=stop)
    assert f"q>{kept}" == str(state)
    assert (kept if conforms else None) == state.values[0][0]
    if conforms:
        assert write("q>", stop_at=stop) == kept
    else:
        with pytest.raises(IncompleteOutput, match="a stop text") as caught:
            write("q>", stop_at=stop)
        assert (kept, "stop") == (caught.value.text, caught.value.reason)


# -- conversations -----------------------------------------------------------------------------------------------------


def test_an_end_of_text_lifts_a_constraint_only_where_the_text_is_whole() -> None:
    with BatchedExecutor(random_model()) as executor:
        conversation = executor.create("the name")
        conversation.constrain(fsm.regex("[0-9]{2}"))
        conversation.prompt("1")
        with pytest.raises(fsm.TokenNotAllowed):
            conversation.prompt([EOS])
        conversation.prompt("2")
        conversation.prompt([EOS])
        conversation.prompt("free again")
        assert conversation.text.endswith("12free again")
