"""Every pair of features on one sequence: the engine writes what the plain, slow loop writes with the same policies.

A batch of two prompts runs in the engine with keys and values, kept logits, forced text off; each row of it is compared with the plain
loop over its tokens, its random numbers and its policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest

import fsm
from outlines_cont import Guidance, SequenceState, continuous, generate, models, policies, samplers
from outlines_cont.generate import Generator
from outlines_cont.generation.options import Options
from outlines_cont.models import HuggingFaceModel
from outlines_cont.samplers import DRY, XTC, Mirostat
from outlines_cont.state.row import WRITTEN, StateRow
from tests.fakes import FakeTokenizer, random_model, random_network
from tests.plain_loop import PlainRow

FEATURES = [
    "constraint",
    "checks",
    "stop",
    "heal",
    "ban",
    "replace",
    "stream",
    "fork",
    "beam",
    "penalties",
    "guidance",
    "draft",
    "prefix cache",
]
# A search cannot be streamed, as it chooses at the end, and has no penalties and no guidance.
NOT_WITH_BEAM = {"stream", "penalties", "guidance"}
PAIRS = [pair for pair in combinations(FEATURES, 2) if "beam" not in pair or not NOT_WITH_BEAM & {*pair}]
# Seed 0 is greedy: a search, which draws nothing, and the pairs with what takes tokens back; what is drawn finds the rest.
CASES = [(pair, 1) for pair in PAIRS if "beam" not in pair]
CASES += [(pair, 0) for pair in PAIRS if {"beam", "ban", "stop"} & {*pair}]
UNIQUE = {"type": "array", "items": {"enum": [1, 2, 12]}, "minItems": 2, "maxItems": 3, "uniqueItems": True}
PATTERN = "[a-e]{1,3}( [a-e]{1,3}){0,3}(x|yes|no)"
PROMPTS = ["the name", "a red"]
MAX_TOKENS = 14
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
        return generate.fsm(model, fsm.regex("[ab]{1,2}: ") + fsm.json_schema(UNIQUE), sampler=sampler, force=False)
    if "checks" in pair:
        return generate.json(model, UNIQUE, sampler=sampler, force=False)
    if "constraint" in pair:
        return generate.regex(model, PATTERN, sampler=sampler, force=False)
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
        more.append(
            policies.ban([part for part in (text[1:3], text[5:6], "q") if part.strip()] or ["q"], max_retries=40)
        )
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
    return samplers.multinomial(3 if "fork" in pair else 1, temperature=2.0, top_p=0.97, **penalties)


def start_of(model: HuggingFaceModel, pair: tuple[str, str]) -> SequenceState:
    """What the piece begins after: two prompts, with `fork` three branches of each that something was written in."""
    first = continuous(generate.text(model, sampler=samplers.multinomial(temperature=2.0)))
    state = first(PROMPTS, max_tokens=2, rng=4)
    return state.fork(3) if "fork" in pair else state


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


def written(
    generator: Generator, start: SequenceState, options: dict[str, Any], pair: tuple[str, str]
) -> SequenceState:
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
            text
            == shown[b, s]
            == state.tokenizer.text_bytes(row.token_ids[row.piece.start :])[row.piece.healed :].decode(errors="replace")
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
        negative = (
            model.tokenizer.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt,
            scale,
        )
    return PlainRow(
        model,
        source.token_ids,
        kinds,
        steering,
        sampler,
        source.stream,
        options["max_tokens"],
        heal="heal" in options,
        negative=negative,
    )
