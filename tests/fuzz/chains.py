"""Random chains of pieces with random options, through public names; every piece must be what a fresh run writes.

A chain is a state that grows by pieces (text, regex, choice, JSON, grammar, with any options), is cut, forked, joined, stacked and loaded.
Each piece is written a second time by another model of equal weights that has kept nothing; ids, values, reasons, errors and weights must
be equal, log-probabilities those of one whole forward. So must be the same piece as a stream, drafted, or row by row.
"""

from __future__ import annotations

import tempfile
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, ClassVar

from fsm import FSMError
from outlines_cont import Guidance, SequenceState, Thinking, continuous, generate, models, policies, samplers
from outlines_cont.errors import OutlinesContError
from outlines_cont.generate import Generator
from outlines_cont.models import HuggingFaceModel
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.state.row import FORCED, GENERATED, HEALED, StateRow
from tests.fakes import FakeTokenizer, random_network
from tests.oracle import rescored

CLOSE = 1e-6
FAMILIES = ["llama", "qwen3", "mistral", "gpt2", "gemma3"]
_TEXTS = ["the name", "a", " of ", "日🙂", "red green blue ", "x" * 9, '{"name": "', "1. ", "é", "yes or no? ", "the the the the"]
_PATTERNS = [
    "", "[a-c]{2,6}", "(red|green|blue)+", "[0-9]+", r"\d{4}-\d\d", "(the )*end", ".{0,8}", "[^.]*[.]", "é?🙂|日本|a+", "(ab|abc|bc)*",
]  # fmt: skip
_CHOICES = [["the", "then", "name"], ["yes", "no"], ["a", "aa", "aaa", "b"], ["日本", "日", "🙂"], ["red, green", "red", "blue"], [""]]
_SCHEMAS: list[Any] = [
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name"],
    },
    {"enum": [{"name": "red"}, [1, 2], None, "é"]},
    {"type": "array", "items": {"enum": ["red", "blue", 12]}, "maxItems": 3},
    {"type": "boolean"},
    {"type": "string", "pattern": "^[ab]+$"},
]  # fmt: skip
_GRAMMARS = ['start: "(" start ")" | "a"', 'start: item ("," item)*\nitem: "red" | "green" | /[0-9]+/']


@dataclass
class Counts:
    """How much was compared."""

    chains: int = 0
    pieces: int = 0
    rows: int = 0
    refused: int = 0

    def __str__(self) -> str:
        return f"{self.chains} chains, {self.pieces} pieces, {self.rows} rows, {self.refused} refused"


@dataclass
class Call:
    """One piece: a generator with its options, as what makes both of them."""

    kind: str
    value: Any
    own: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def made(self, model: HuggingFaceModel, **changes: Any) -> Generator:
        """Return the generator of a model."""
        given = [] if self.kind == "text" else [self.value]
        generator: Generator = getattr(generate, self.kind)(model, *given, **{**self.own, **changes})
        return generator


@dataclass
class Chain:
    """A chain from a seed, and the model that writes it."""

    families: ClassVar[Sequence[str]] = FAMILIES
    most_tokens: ClassVar[int] = 90

    seed: int
    random: Random = field(init=False)
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        family = self.random.choice(self.families)
        self.told.append(family)
        reused = self.random.choice([0, 1 << 20])
        self.model = self.make_model(family, prefix_cache_bytes=reused)
        self.fresh = self.make_model(family, prefix_cache_bytes=0)
        self.model.prefix_cache.min_tokens = 2

    def make_model(self, family: str, **options: Any) -> HuggingFaceModel:
        """Return a model of a family, of the same weights each time."""
        return models.from_transformers(random_network(family), FakeTokenizer(), **options)

    def scores(self, row: StateRow) -> list[float]:
        """Return the log-probability of each token of a row by one forward of everything."""
        return rescored(self.fresh, row.token_ids)

    def running(self) -> AbstractContextManager[None]:
        """Return what is around each piece of the model."""
        return nullcontext()

    def sampler(self) -> Any:
        """Return a sampler or None."""
        r = self.random
        kind = r.random()
        if kind < 0.35:
            return None
        if kind < 0.42:
            return samplers.beam_search(r.choice([2, 3]))
        if kind < 0.47:
            return samplers.best_of(r.choice([2, 3]))
        options: dict[str, Any] = {"temperature": r.choice([0.5, 1.0, 2.5])}
        for name, values in {"top_p": [0.9], "top_k": [5, 40], "min_p": [0.05], "repetition_penalty": [1.3]}.items():
            if r.random() < 0.2:
                options[name] = r.choice(values)
        return samplers.multinomial(*([r.choice([1, 2])] if r.random() < 0.3 else []), **options)

    def call(self) -> Call:
        """Return a random piece."""
        r = self.random
        kind = r.choice(["text", "text", "regex", "regex", "choice", "json", "cfg"])
        value = {"regex": _PATTERNS, "choice": _CHOICES, "json": _SCHEMAS, "cfg": _GRAMMARS}.get(kind, [None])
        call = Call(kind, r.choice(value), {"sampler": self.sampler()})
        if kind != "text":
            call.own["force"] = r.random() < 0.75
        if kind == "choice" and r.random() < 0.5:
            call.own["exact"] = False
            if r.random() < 0.6:
                call.own["end"] = r.choice(["free", "eos"])
        call.options["max_tokens"] = r.choice([1, 3, 6, 12, 20])
        if r.random() < 0.3:
            call.options["stop_at"] = r.sample(["e", "re", " ", "12", ".", "日", "th"], r.choice([1, 2]))
            if r.random() < 0.4:
                call.options[r.choice(["keep_stop", "stop_in_prompt"])] = True
        if r.random() < 0.2:
            call.options["heal"] = True
        if r.random() < 0.15:
            call.options["min_tokens"] = 1
        if r.random() < 0.25:
            call.options["policies"] = [policies.ban(r.sample(["the", "e", "re", "12", " a", "é", "x"], 2))]
        if r.random() < 0.15:
            call.options["guidance"] = Guidance(r.choice(["red ", "the name of"]), r.choice([0.5, 1.5]))
        if r.random() < 0.12:
            call.options["thinking"] = Thinking(begin="<think>", end="</think>", max_tokens=r.choice([2, 6]))
        return call

    def start(self) -> SequenceState:
        """Return the first state."""
        texts = self.random.sample(_TEXTS, self.random.choice([1, 1, 2, 3]))
        self.told.append(f"{texts}")
        return continuous(generate.text(self.model))(texts, max_tokens=1)

    def changed(self, state: SequenceState) -> SequenceState:
        """Return the state after a random operation."""
        r = self.random
        act = r.choice(["append", "append", "cut", "cut_text", "fork", "add", "stack", "none", "load"])
        at = r.randint(1, 20)
        text = r.choice(_TEXTS)
        self.told.append(f"{act} {at} {text!r}")
        match act:
            case "append":
                return state.append(text)
            case "cut":
                return state.tokens[..., :at]
            case "cut_text":
                return state[..., :at]
            case "fork":
                return state.fork(2) if len(state) < 4 else state
            case "add":
                return state + state[..., : at // 4]
            case "stack":
                return SequenceState.stack([state, state.append("a")]) if len(state) < 3 else state
            case "load":
                return _copied(state, self.model)
        return state


def _copied(state: SequenceState, model: HuggingFaceModel) -> SequenceState:
    with tempfile.TemporaryDirectory() as folder:
        state.save(Path(folder, "s"), kv=model is state.model)
        return SequenceState.load(Path(folder, "s"), model)


def _rows(state: SequenceState) -> list[StateRow]:
    return [row for group in state.rows for row in group]


def _shown(row: StateRow) -> tuple[Any, ...]:
    error = f"{type(row.error).__name__}: {row.error}" if row.error is not None else None
    return (row.token_ids, row.kinds, error)


def _compare(what: str, wanted: SequenceState, found: SequenceState, *, values: bool = True) -> list[str]:
    """Return what differs."""
    wrong = []
    for name in ("finish_reasons", "values", "thoughts", "scores") if values else ():
        if repr(getattr(wanted, name)) != repr(getattr(found, name)):
            wrong.append(f"{what}: {name}: {getattr(wanted, name)!r} != {getattr(found, name)!r}")
    for i, (left, right) in enumerate(zip(_rows(wanted), _rows(found), strict=True)):
        if _shown(left) != _shown(right):
            wrong.append(f"{what}: row {i}: {_shown(left)} != {_shown(right)}")
            continue
        if abs(left.weight - right.weight) > CLOSE:
            wrong.append(f"{what}: row {i}: weight {left.weight} != {right.weight}")
        for name in ("logprobs", "sampling_logprobs"):
            pairs = zip(getattr(left, name), getattr(right, name), strict=True)
            if any(abs(a - b) > CLOSE for a, b in pairs if a != b):
                wrong.append(f"{what}: row {i}: {name} {[*getattr(left, name)]} != {[*getattr(right, name)]}")
    return wrong


def _judged(chain: Chain, call: Call, state: SequenceState, counts: Counts) -> tuple[SequenceState, list[str]]:
    """Write a piece; return the state after it, and what is wrong."""
    options = {**call.options, "rng": chain.random.randint(0, 99) if state.num_samples == 1 and chain.random.random() < 0.5 else None}
    before = [(_shown(row), row.weight) for row in _rows(state)]
    with chain.running():
        written = continuous(call.made(chain.model))(state, **options)
    counts.pieces += 1
    counts.rows += len(_rows(written))
    wrong = [] if before == [(_shown(row), row.weight) for row in _rows(state)] else ["the state before has changed"]
    fresh = continuous(call.made(chain.fresh))(_copied(state, chain.fresh), **options)
    wrong += _compare("fresh", fresh, written)
    first = max(len(row.token_ids) for row in _rows(state))
    for row in _rows(written):
        if row.error is None:
            wrong += _rescored(chain, row, first)
    with chain.running():
        return written, wrong + _other_ways(chain, call, state, options, written)


def _rescored(chain: Chain, row: StateRow, first: int) -> list[str]:
    """Compare the log-probabilities from a position on with those of one forward; what was healed has those of its text."""
    plain = chain.scores(row)[first:]
    wanted = [score if bytes([kind]) in (GENERATED, FORCED) else 0.0 for score, kind in zip(plain, row.kinds[first:], strict=True)]
    pairs = zip(wanted, row.logprobs[first:], row.kinds[first:], strict=True)
    if all(abs(one - other) <= CLOSE for one, other, kind in pairs if bytes([kind]) != HEALED):
        return []
    return [f"rescored from {first} on: {wanted} != {[*row.logprobs[first:]]}"]


def _num_written(row: StateRow) -> int:
    """The number of tokens of the last piece that `max_tokens` counts."""
    assert row.piece is not None
    return len(row.token_ids) - row.piece.start - row.kinds.count(HEALED, row.piece.start)


def _other_ways(chain: Chain, call: Call, state: SequenceState, options: dict[str, Any], written: SequenceState) -> list[str]:
    """The same piece drafted, as a stream, and row by row."""
    write, wrong = continuous(call.made(chain.model)), list[str]()
    is_search = isinstance(call.own["sampler"], BeamSearch | BestOf)
    is_whole = call.kind == "choice" and call.own.get("exact") is not False  # without room for it, it is drawn under a mask
    way = chain.random.choice(["draft", "stream", "alone", "parts"])
    if way == "draft" and not is_search and "guidance" not in options:
        wrong = _compare("drafted", written, write(state, **options, draft="lookup"))
    elif way == "stream" and not is_search:
        with write.stream(state, **options, retract=True) as stream:
            deque(stream, maxlen=0)
        wrong = _compare("as a stream", written, stream.state)
    elif way == "parts" and not is_search and not is_whole and call.options["max_tokens"] > 1:
        most, first = call.options["max_tokens"], chain.random.randint(1, call.options["max_tokens"] - 1)
        cut = write(state, **{**options, "max_tokens": first, "min_tokens": min(first, options.get("min_tokens", 0))})
        rest = {"min_tokens": options["min_tokens"]} if "min_tokens" in options else {}  # the other options are kept
        cut = cut if chain.random.random() < 0.5 else _copied(cut, chain.model)
        if chain.random.random() < 0.5:
            resumed = write.resume(cut, **rest, max_tokens=most - first)
        else:
            with write.stream(cut, resume=True, retract=True, **rest, max_tokens=most - first) as stream:
                deque(stream, maxlen=0)
            resumed = stream.state
        # A row that is cut where the end of its text has no room has fewer tokens, and those that are left do not make up for it.
        is_short = any(row.finish_reason == "length" and _num_written(row) < first for row in _rows(cut))
        if not is_short and not any(row.error for row in _rows(written)):  # the end of a row that fails has no scores
            wrong = _compare(f"cut after {first} and resumed", written, resumed)
    elif way == "alone" and options["rng"] is None and not is_search and state.num_samples == 1:
        for batch in range(state.batch_size):
            alone = write(state.take([(batch, 0)]), **options)
            of_row = written.take([(batch, sample) for sample in range(written.num_samples)])
            wrong += _compare(f"row {batch} alone", of_row, alone, values=False)
    return wrong


def run(
    seed: int, seconds: float, counts: Counts, *, count: int | None = None, progress: float = 0, kind: type[Chain] = Chain
) -> Iterator[str]:
    """Run chains from a seed on, until a time or a number of them; yield each finding as a text.

    Args:
        seed: of the first chain; those of others follow it.
        seconds: the most time.
        counts: is filled.
        count: the most chains.
        progress: print the counts every so many seconds; 0 never.
        kind: of the chains.
    """
    end, told = monotonic() + seconds, monotonic()
    while monotonic() < end and (count is None or counts.chains < count):
        chain = kind(seed + counts.chains)
        counts.chains += 1
        if progress and monotonic() > told + progress:
            told = monotonic()
            print(f"... {counts}", flush=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wrong = _run(chain, counts)
        except Exception:
            wrong = [traceback.format_exc()]
        if wrong:
            finding = "\n".join([f"chain {chain.seed}", *chain.told, *wrong])
            print(finding, flush=True)
            yield finding


def _run(chain: Chain, counts: Counts) -> list[str]:
    """Write a chain; return what is wrong with its first wrong piece."""
    state = chain.start()
    for _ in range(chain.random.randint(1, 4)):
        call = chain.call()
        chain.told.append(repr(call))
        try:
            state, wrong = _judged(chain, call, state, counts)
        except (OutlinesContError, FSMError) as error:
            counts.refused += 1
            chain.told.append(f"refused: {error}")
            continue
        if wrong or any(row.error is not None for row in _rows(state)):
            return wrong
        for _ in range(chain.random.randint(0, 2)):
            with suppress(OutlinesContError):
                state = chain.changed(state)
        if len(_rows(state)) > 6:
            state = state.take([(0, 0)])
        if any(len(row.token_ids) > chain.most_tokens for row in _rows(state)):
            state = state.tokens[..., : chain.most_tokens // 3]
        if not all(row.token_ids for row in _rows(state)):
            return []
    return []
