"""The sides of `benchmarks.quality`: ways to have a question answered by the same weights. Each is an asynchronous function from a
`Subject` and a question to an `Answer`; the rows of this package run together, other libraries answer one after the other.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from benchmarks.quality_certainty import agreed
from benchmarks.quality_questions import KINDS, Question
from benchmarks.writers import Weights

if TYPE_CHECKING:
    from outlines_cont.state.row import StateRow

MAX_TOKENS = 110
_AT_ONCE = 16
_THOUGHT = " Think about it in one sentence first."
_SAMPLES = 5
_LEAST_AGREEMENT = 0.8
_BEAMS = 3
JSON_KINDS = ("record", "tool", "quote")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a side answers: a text with the form of the answer, or as much of it as there is.

    Attributes:
        text: the text.
        is_withheld: whether the side does not answer, as it is too uncertain.
        certainty: how certain each value of a record is, from 0 to 1, by its path, for each way to tell it.
        error: why there is no answer; empty if there is one.
        row: the record with its prompt, of which `quality_certainty.measured` makes a certainty; without keys and values.
    """

    text: str
    is_withheld: bool = False
    certainty: dict[str, dict[str, float]] = field(default_factory=dict)
    error: str = ""
    row: StateRow | None = field(default=None, compare=False, repr=False)


class Subject:
    """A model in this repository, in outlines and in xgrammar, over the same weights."""

    def __init__(self, weights: Weights) -> None:
        from outlines_cont import models

        self.network, self.tokenizer = weights.model, weights.tokenizer
        self.model = models.from_transformers(self.network, self.tokenizer)
        self._generators: dict[str, Any] = {}

    def prompt(self, text: str, lead: str = "") -> str:
        """Return a question as the model reads it: in its chat template, if it has one."""
        if self.tokenizer.chat_template is None:
            return f"{text}\nAnswer: {lead}"
        messages = [{"role": "user", "content": text}]
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)) + lead

    def generator(self, question: Question, **options: Any) -> Any:
        """Return the generator of the form of a question."""
        form = [
            question.schema,
            question.pattern,
            question.options,
            sorted(options),
            repr([options[name] for name in sorted(options)]),
        ]
        key = json.dumps(form)
        if key not in self._generators:
            self._generators[key] = self._made(question, options)
        return self._generators[key]

    def _made(self, question: Question, options: dict[str, Any]) -> Any:
        from outlines_cont import generate

        if question.schema is not None:
            return generate.json(self.model, question.schema, **options)
        if question.options:
            return generate.choice(self.model, list(question.options), **options)
        return generate.regex(self.model, question.pattern or "", **options)

    async def state(self, generator: Any, text: str, lead: str = "", **options: Any) -> Any:
        """Return the state that a generator writes after a question."""
        from outlines_cont import Tokens, continuous

        prompt = Tokens.of(self.prompt(text, lead), special=True)
        return await continuous(generator).acall(prompt, **{"max_tokens": MAX_TOKENS, **options})

    async def reply(self, generator: Any, text: str) -> Any:
        """Return the state that a generator writes as the reply to a message of the user, by its conversation; not without a template."""
        from outlines_cont import continuous

        return await continuous(generator).acall([{"role": "user", "content": text}], max_tokens=MAX_TOKENS)

    @cached_property
    def peer(self) -> Any:
        """The model in outlines."""
        import outlines  # type: ignore[import-not-found,unused-ignore]

        return outlines.from_transformers(self.network, self._plain)

    @cached_property
    def _plain(self) -> Any:
        tokenizer = copy(self.tokenizer)
        tokenizer.pad_token, tokenizer.chat_template = tokenizer.eos_token, None  # prompts have the template already
        return tokenizer

    @cached_property
    def compiler(self) -> Any:
        """The compiler of grammars of xgrammar."""
        import xgrammar

        info = xgrammar.TokenizerInfo.from_huggingface(self.tokenizer, vocab_size=self.network.config.vocab_size)
        return xgrammar.GrammarCompiler(info, max_threads=1)

    @property
    def options(self) -> dict[str, Any]:
        """The options of `generate` of transformers."""
        return {"max_new_tokens": MAX_TOKENS, "do_sample": False, "pad_token_id": self.tokenizer.eos_token_id}


Way = Callable[[Subject, Question], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Side:
    """A way to have questions answered.

    Attributes:
        answer: the way.
        kinds: the kinds of questions that it is for.
    """

    answer: Way
    kinds: Sequence[str] = KINDS


async def answers(subject: Subject, side: Side, asked: Sequence[Question]) -> list[Answer | None]:
    """Return the answers of a side; None to questions of kinds that it is not for. One that fails is wrong, with its error."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(question: Question) -> Answer | None:
        if question.kind not in side.kinds:
            return None
        async with room:
            try:
                return await side.answer(subject, question)
            except Exception as error:  # of a peer, too, which may raise anything
                return Answer("", error=f"{type(error).__name__}: {error}"[:200])

    return await asyncio.gather(*map(one, asked))


def written(state: Any) -> str:
    """Return what the last generator wrote in a state of one row, whole or cut."""
    row = state.rows[0][0]
    return (
        ""
        if row.piece is None
        else state.tokenizer.text_bytes(row.token_ids[row.piece.start :]).decode(errors="replace")
    )


def read(question: Question, text: str) -> str:
    """Return the first text in free text that has the form of an answer, read generously; empty if there is none."""
    if question.schema is not None:
        try:
            value, _ = json.JSONDecoder().raw_decode(text, max(text.find("{"), 0))
        except ValueError:
            return ""
        return json.dumps(value)
    pattern = "|".join(map(re.escape, question.options)) if question.options else question.pattern or ""
    match = re.search(pattern, text, re.IGNORECASE)
    return match[0] if match else ""


async def free(subject: Subject, question: Question) -> Answer:
    """Free text, of which the first text with the form of an answer counts."""
    from outlines_cont import generate

    state = await subject.state(generate.text(subject.model), question.text, question.lead)
    return Answer(read(question, written(state)))


def constrained(*, shows_schema: bool = False, calibrates: bool = False, **options: Any) -> Way:
    """Return the way under a constraint, with options of the generator; without any the answer has its row."""

    async def answer(subject: Subject, question: Question) -> Answer:
        from fsm import schema_text
        from outlines_cont import Tokens

        text = question.text
        if shows_schema:
            text += f"\n\nThe form of the answer:\n{schema_text(question.schema)}"
        base = Tokens.of(subject.prompt(question.empty, question.lead), special=True)
        against = {"against": [base]} if calibrates else {}
        own = options if not calibrates or question.options else {**options, "exact_fields": True}
        state = await subject.state(subject.generator(question, **own), text, question.lead, **against)
        is_plain = not (shows_schema or calibrates or options)
        return Answer(written(state), row=bare(state) if is_plain and question.kind in JSON_KINDS else None)

    return answer


def shown(**options: Any) -> Way:
    """Return the way of a conversation without a message of the system, to which `show_schema` adds one with the schema."""

    async def answer(subject: Subject, question: Question) -> Answer:
        state = await subject.reply(subject.generator(question, show_schema=True, **options), question.text)
        return Answer(written(state))

    return answer


def bare(state: Any) -> StateRow:
    """Return the only row of a state without keys, values and logits."""
    row: StateRow = state.rows[0][0]
    return replace(row, kv=None, logits=None)


async def thought(subject: Subject, question: Question) -> Answer:
    """A sentence of free text first, then the answer under a constraint."""
    from outlines_cont import continuous, generate

    lead = question.lead or "Answer: "
    begun = await subject.state(generate.text(subject.model), question.text + _THOUGHT, max_tokens=60, stop_at="\n")
    state = await continuous(subject.generator(question)).acall(begun + f"\n{lead}", max_tokens=MAX_TOKENS)
    return Answer(written(state))


async def _samples(subject: Subject, question: Question, temperature: float) -> list[str]:
    from outlines_cont import samplers

    generator = subject.generator(question, sampler=samplers.multinomial(_SAMPLES, temperature=temperature))
    state = await subject.state(generator, question.text, question.lead, rng=0)
    return [written(state[0, sample, :]) for sample in range(_SAMPLES)]


async def majority(subject: Subject, question: Question) -> Answer:
    """The most frequent of five samples at temperature 0.5."""
    ((text, _),) = Counter(await _samples(subject, question, 0.5)).most_common(1)
    return Answer(text)


async def searched(subject: Subject, question: Question) -> Answer:
    """The most probable text that a search with three beams finds under a constraint."""
    from outlines_cont import samplers

    generator = subject.generator(question, sampler=samplers.beam_search(_BEAMS))
    return Answer(written(await subject.state(generator, question.text, question.lead)))


async def abstaining(subject: Subject, question: Question) -> Answer:
    """The answer under a constraint; withheld if less than four of five samples at temperature 1 are the same."""
    greedy = written(await subject.state(subject.generator(question), question.text, question.lead))
    samples = await _samples(subject, question, 1.0)
    certainty = {"agreement": agreed(greedy, samples)} if question.kind in JSON_KINDS else {}
    return Answer(greedy, samples.count(greedy) / _SAMPLES < _LEAST_AGREEMENT, certainty)


async def outlines(subject: Subject, question: Question) -> Answer:
    """outlines, with its default white space."""
    import outlines as peer  # type: ignore[import-not-found,unused-ignore]
    from outlines.types import JsonSchema, Regex  # type: ignore[import-not-found,unused-ignore]

    pattern = "|".join(map(re.escape, question.options)) if question.options else question.pattern
    form = JsonSchema(question.schema) if question.schema is not None else Regex(pattern)
    generator = peer.Generator(subject.peer, form)
    return Answer(generator(subject.prompt(question.text, question.lead), **subject.options))


async def guidance(subject: Subject, question: Question) -> Answer:
    """guidance, with any white space; a new engine for each question, as the cache of one cannot be cut in transformers 5.24."""
    import guidance as peer  # type: ignore[import-not-found,unused-ignore]

    if question.schema is not None:
        term = peer.json(
            name="answer", schema=question.schema, temperature=0.0, max_tokens=MAX_TOKENS, whitespace_flexible=True
        )
    elif question.options:
        term = peer.select(list(question.options), name="answer")
    else:
        term = peer.gen(name="answer", regex=question.pattern, temperature=0.0, max_tokens=MAX_TOKENS)
    model = peer.models.Transformers(subject.network, subject.tokenizer, echo=False)
    return Answer(str((model + subject.prompt(question.text, question.lead) + term)["answer"]))


async def xgrammar(subject: Subject, question: Question) -> Answer:
    """The logits processor of xgrammar for transformers, with its default white space."""
    from xgrammar.contrib.hf import LogitsProcessor

    pattern = "|".join(map(re.escape, question.options)) if question.options else question.pattern
    if question.schema is not None:
        compiled = subject.compiler.compile_json_schema(json.dumps(question.schema))
    else:
        compiled = subject.compiler.compile_regex(pattern)
    prompt = subject.prompt(question.text, question.lead)
    inputs = subject.tokenizer(prompt, return_tensors="pt", add_special_tokens=subject.tokenizer.chat_template is None)
    ids = subject.network.generate(**inputs, logits_processor=[LogitsProcessor(compiled)], **subject.options)
    return Answer(subject.tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


SIDES = {
    "free text": Side(free),
    "constrained": Side(constrained()),
    "schema in the prompt": Side(constrained(shows_schema=True), JSON_KINDS),
    'key_order="any"': Side(constrained(key_order="any"), JSON_KINDS),
    "show_schema": Side(shown(), JSON_KINDS),
    "exact_fields": Side(constrained(exact_fields=True), JSON_KINDS),
    "exact_fields and show_schema": Side(shown(exact_fields=True), JSON_KINDS),
    "against": Side(constrained(calibrates=True), ("record", "choice")),
    "a thought first": Side(thought),
    "three beams": Side(
        searched, ("record", "number", "tool", "quote", "sql")
    ),  # a choice is made of whole texts anyway
    "majority of 5": Side(majority),
    "abstaining": Side(abstaining),
    "guidance": Side(guidance),
    "outlines": Side(outlines),
    "xgrammar": Side(xgrammar),
}
