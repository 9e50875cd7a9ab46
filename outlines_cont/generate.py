"""Generators for constrained decoding: `text`, `regex`, `choice`, `json`, `format`, `cfg` and `fsm`, each a function that compiles a
constraint to a token FSM and returns a `Generator`. JSON Schema keywords that no automaton can express are checked when a value ends, and
the value is sampled again if it fails (rejection sampling, at most `max_retries`).

A generator is a frozen value. Called with a prompt, a state, or a list of either, it returns values; wrapped in
`continuous` it returns a state.
"""

from __future__ import annotations

import asyncio
import builtins
import json as json_module
import math
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from types import FunctionType
from typing import Any, ParamSpec, Unpack

from pydantic import TypeAdapter

import fsm as fsm_package
from fsm import Expression
from fsm.automaton.captures import Captures
from fsm.expression import lift
from fsm.schema import arguments_of
from outlines_cont.checks import checked_bool, is_int
from outlines_cont.drafts.opening import open_draft
from outlines_cont.errors import (
    IncompleteOutput,
    MissingEOS,
    NoHypothesis,
    NotPicklable,
    OptionError,
    located,
    shortened,
)
from outlines_cont.events.partial_type import PartialType
from outlines_cont.events.stream_options import StreamOptions, check_streamed
from outlines_cont.generation.formats import format_of
from outlines_cont.generation.options import GENERATORS_OWN, OPTIONS_ELSEWHERE, Options, PieceOptions, checked_policies
from outlines_cont.generation.prompt import Prompt
from outlines_cont.generation.run import Run
from outlines_cont.generation.run_events import RunEvents, squeezed
from outlines_cont.immutable import Immutable
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.checked import MAX_RETRIES, CheckedConstraint
from outlines_cont.policies.constraint import Constraint
from outlines_cont.policies.free_text import FreeText
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.stop import StopAt
from outlines_cont.samplers import BeamSearch, Greedy, Multinomial, greedy
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.sampling.sampler import Sampler
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.unknown_option import knows_its_options

_NUM_GENERATORS = 64
_making = threading.Lock()


@dataclass(frozen=True, eq=False)
class Generator(Immutable):
    """Generates one span of text after a prompt or a state. Make one with `generate.text`, `generate.json` and so on.

    Attributes:
        model: the model that writes.
        sampler: how tokens are drawn.
        constraint: the language of the text; None for free text.
        parse: from the text of a generated span to its value.
        source: the constraint as JSON, such as `{"regex": "[a-z]+"}`; it is saved with a state.
        partial_type: the type of the value, for partial values in a stream; None where the value has no type.
        steering: policies of every call, besides those given to the call.
        draft: the draft for speculative decoding in every call that does not set its own.
        unbounded: the values of a schema that may be of any length; see `fsm.Report`.
        made_by: the function of `generate` that made it, and its arguments; None if it was made otherwise.
    """

    model: LanguageModel
    sampler: Sampler | BeamSearch
    constraint: Constraint | CheckedConstraint | None
    parse: Callable[[str], Any] = field(repr=False)
    source: str
    partial_type: PartialType | None = field(default=None, repr=False)
    steering: tuple[Policy[Any], ...] = field(default=(), repr=False)
    draft: Any = field(default=None, repr=False)
    unbounded: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    # Not copied by `dataclasses.replace`: what was changed is no longer what the call made.
    made_by: tuple[str, tuple[Any, ...], dict[str, Any]] | None = field(init=False, default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the call that made the generator, its model and sampler among the arguments; elsewhere it is made again.

        Raises:
            NotPicklable: no function of `generate` made it.
        """
        if self.made_by is None:
            raise NotPicklable(
                "expected a generator as a function of `generate` returned it, got one that was made or changed by hand. "
                "Make it in each process by itself."
            )
        return _unpickled, self.made_by

    def __call__(self, prompt: Prompt, *, rng: Rng = None, **options: Unpack[PieceOptions]) -> Any:
        """Write one span per row and return the values.

        Args:
            prompt: a text, a state, or a list of either.
            rng: for a sampler that draws: a seed, a `torch.Generator` to draw the seed from, or a list with a seed per
                prompt. None continues the streams of a state, and takes a seed from the operating system for a prompt.
            **options: `max_tokens`, `stop_at` and the others of `PieceOptions`.

        Returns:
            `[batch][sample]` lists of values; a dimension of size 1 is left out.

        Raises:
            OptionError, PromptTypeError, EmptyPrompt, ContextLengthError, SampleMismatch: before anything runs.
            IncompleteOutput: after all rows have ended: a constrained text was cut. It carries `.results` and `.errors`, as
                does any other error that a single row has failed with. Where there are several rows, the message begins
                with the index of the first that has failed.
        """
        run = self._run(prompt, options, rng)
        for _ in run.steps():
            pass
        return self.value_of(run.state(), run.options.max_tokens)

    async def acall(self, prompt: Prompt, *, rng: Rng = None, **options: Unpack[PieceOptions]) -> Any:
        """The asynchronous form: it does not block the event loop, and a cancelled task releases its rows. Tasks share the engine."""
        run = self._run(prompt, options, rng)
        async for _ in run.async_steps():
            pass
        return self.value_of(run.state(), run.options.max_tokens)

    def stream(
        self,
        prompt: Prompt,
        *,
        events: bool = False,
        top: int = 0,
        retract: bool = False,
        partial: bool = False,
        rng: Rng = None,
        **options: Unpack[PieceOptions],
    ) -> Iterator[Any]:
        """Write as a call does, and yield the text as it comes.

        Args:
            prompt: as for a call.
            events: yield a `StreamEvent` for each row that has news, with its tokens and its finish reason.
            top: in events, for each drawn token this number of the most probable ones, with their log-probabilities.
            retract: in events, show text at once, though a stop text or a policy may yet take it back; an event then says how much.
            partial: for a generator of JSON, yield the value so far instead, whenever it has changed; with `events`, add it to them.
            rng: as for a call.
            **options: as for a call.

        Yields:
            Without `events` new text, never empty: a `str` for one row; for more rows lists of `str` in the shape of the values, with
            empty texts for rows that have none. Characters are whole, and nothing is taken back. Joined, they are the whole text.

            With `partial` values in that shape, None for rows that have none yet. Of a model what is missing is left out (defaults, too;
            `model_fields_set` says what is there), text grows, and whatever is whole was validated and stays. What fails validation is
            left out. The last is what a call returns.

        Raises:
            As a call does: what can be checked at once here, the rest after the last text.
        """
        shown = StreamOptions(events, top, retract, partial)
        run = self._streamed_run(prompt, options, rng)
        return self._stream(run, RunEvents(run, shown))

    def astream(
        self,
        prompt: Prompt,
        *,
        events: bool = False,
        top: int = 0,
        retract: bool = False,
        partial: bool = False,
        rng: Rng = None,
        **options: Unpack[PieceOptions],
    ) -> AsyncIterator[Any]:
        """The asynchronous form, which does not block the event loop: `async for text in generator.astream(prompt)`."""
        shown = StreamOptions(events, top, retract, partial)
        run = self._streamed_run(prompt, options, rng)
        return self._astream(run, RunEvents(run, shown))

    def policies(self, options: Options) -> list[Policy[Any]]:
        """Return the policies of a row: the constraint, those that the options imply, and those of the user."""
        model, memo = self.model, self.model.memo
        main: Policy[Any] | None = self.constraint
        if main is None:
            main = memo.get("free_text") or memo.setdefault("free_text", FreeText.of_model(model))
        policies: list[Policy[Any]] = [main]
        if options.stop_at:
            stop_in_prompt, keep = options.stop_in_prompt, options.keep_stop
            policies.append(StopAt(options.stop_at, model.tokenizer, keep=keep, stop_in_prompt=stop_in_prompt))
        return policies + [policy.for_model(model) for policy in (*self.steering, *options.policies)]

    def draft_of(self, options: Options) -> Any:
        """Return the draft of a call: the one given to the call, else that of the generator."""
        return self.draft if options.draft is GENERATORS_OWN else options.draft

    def finish(self, row: StateRow) -> StateRow:
        """Return a finished row with its value, which is None where a constrained text was cut."""
        if not self.is_whole(row):
            return replace(row, value=None)
        return replace(row, value=self.parse(self._piece_text(row)))

    def is_whole(self, row: StateRow) -> bool:
        """Return whether the text of a finished row conforms to the constraint; free text always does."""
        if self.constraint is None or row.finish_reason == "constraint":
            return True
        if row.finish_reason != "stop" or row.piece is None:
            return False
        token_ids = row.token_ids[row.piece.start :]
        healed = self.model.tokenizer.text_bytes(token_ids)[: row.piece.healed] if row.piece.healed else b""
        return self.constraint.accepts(token_ids, healed)  # it may be the piece of another generator

    def _piece_text(self, row: StateRow) -> str:
        if row.piece is None:
            return ""
        data = self.model.tokenizer.text_bytes(row.token_ids[row.piece.start :])
        return data[row.piece.healed :].decode("utf-8", errors="replace")

    def _run(self, prompt: Any, options: PieceOptions, rng: Rng) -> Run:
        # A plain call returns no log-probabilities, so those of forced tokens at the very end need no forward.
        return Run(self, prompt, Options.of(options), rng=rng, score_last=False)

    def _streamed_run(self, prompt: Prompt, options: PieceOptions, rng: Rng) -> Run:
        check_streamed(self.sampler)
        return Run(self, prompt, Options.of(options), rng=rng)

    def _stream(self, run: Run, events: RunEvents) -> Iterator[Any]:
        for _ in run.steps():
            yield from events.items(events.pull())
        self.value_of(run.state(), run.options.max_tokens)

    async def _astream(self, run: Run, events: RunEvents) -> AsyncIterator[Any]:
        async for _ in run.async_steps():
            # In a thread, since another task may have begun the next step, which holds the lock.
            for item in events.items(await asyncio.to_thread(events.pull)):
                yield item
        self.value_of(run.state(), run.options.max_tokens)

    def value_of(self, state: SequenceState, max_tokens: int | None) -> Any:
        """Return the values of a state that a call with this limit has made, or raise the first error of its rows."""
        errors = [[self._row_error(row, max_tokens) for row in group] for group in state.rows]
        places = [(b, s) for b, group in enumerate(errors) for s, error in enumerate(group) if error is not None]
        if places:
            batch, sample = places[0]
            first = errors[batch][sample]
            assert first is not None
            if len(errors) * len(errors[0]) > 1:
                first = errors[batch][sample] = located(first, batch, sample)
            first.results = squeezed(state.values)  # type: ignore[attr-defined]
            first.errors = squeezed(errors)  # type: ignore[attr-defined]
            raise first
        return squeezed(state.values)

    def _row_error(self, row: StateRow, max_tokens: int | None) -> Exception | None:
        if row.error is not None or self.is_whole(row):
            return None if isinstance(row.error, NoHypothesis) else row.error
        text = self._piece_text(row)
        limit, advice = self._cut_by(row, max_tokens)
        return IncompleteOutput(
            f"expected a text that conforms to the constraint and has come to its end, but {limit} cut it to {shortened(repr(text))}. "
            + advice,
            text,
            row.finish_reason,
        )

    def _cut_by(self, row: StateRow, max_tokens: int | None) -> tuple[str, str]:
        """Return which limit cut a text, and what to do about it."""
        if row.finish_reason == "length" and row.piece is not None and row.piece.retries:
            advice = "A ban or a check may leave nothing else to write; or raise `max_tokens`."
            return f"the most tokens of the piece, after {row.piece.retries} retries of its policies,", advice
        if row.finish_reason != "length":
            return "a stop text", "Leave out `stop_at`, or use one that no conforming text contains."
        context = self.model.context_length
        if context is not None and len(row.token_ids) >= context:
            limit = f"the context of the model ({context} tokens)"
            return limit, "Shorten the prompt, or use a model with a longer context."
        if row.piece is not None and len(row.token_ids) - row.piece.start < (max_tokens or math.inf):
            limit = f"the context of the model ({context} tokens), which the negative prompt and the text fill,"
            return limit, "Shorten the negative prompt, or use a model with a longer context."
        return "`max_tokens`", "Raise `max_tokens`, or use `continuous(generator)`, whose state `resume` goes on with."


P = ParamSpec("P")


def _generator_function(
    also_of: Callable[..., Any] | None = None,
) -> Callable[[Callable[P, Generator]], Callable[P, Generator]]:
    """Return a decorator for functions that return generators: unknown options raise, and the generators can be pickled.

    Other options are given to the function `also_of`.
    """

    def decorate(function: Callable[P, Generator]) -> Callable[P, Generator]:
        maker = knows_its_options(also_of=also_of, elsewhere=OPTIONS_ELSEWHERE)(function)

        @wraps(maker)
        def make(*args: P.args, **options: P.kwargs) -> Generator:
            generator = maker(*args, **options)
            kept = tuple(map(_copied, args)), {name: _copied(option) for name, option in options.items()}
            object.__setattr__(generator, "made_by", (function.__name__, *kept))
            return generator

        return make

    return decorate


def _copied(argument: Any) -> Any:
    """Return a copy of an argument that is a dict or a list, since the caller may change a schema later."""
    return deepcopy(argument) if isinstance(argument, dict | list) else argument


def _unpickled(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Generator:
    generator: Generator = globals()[name](*args, **options)
    return generator


@_generator_function()
def text(
    model: LanguageModel,
    *,
    sampler: Sampler | BeamSearch | None = None,
    policies: Sequence[Policy[Any]] = (),
    draft: Any = None,
) -> Generator:
    """Write free text until the model ends it, `stop_at` or `max_tokens`. The value is the text, also where it was cut."""
    _check(model, sampler)
    return _complete(Generator(model, sampler or greedy(), None, str, _source("text", None)), policies, draft)


@_generator_function()
def regex(
    model: LanguageModel,
    pattern: str,
    *,
    sampler: Sampler | BeamSearch | None = None,
    force: bool = True,
    policies: Sequence[Policy[Any]] = (),
    draft: Any = None,
) -> Generator:
    """Write text that matches `pattern` as a whole (Python's syntax and meaning). The value is the text.

    Raises:
        fsm.RegexSyntaxError, fsm.UnsupportedRegex: the pattern is malformed, or cannot be a constraint.
        fsm.EmptyLanguage, fsm.VocabularyGap: nothing matches, or nothing that the model could write.
    """
    made = _constrained(model, fsm_package.regex(pattern), sampler, force, str, _source("regex", pattern))
    return _complete(made, policies, draft)


@_generator_function()
def choice(
    model: LanguageModel,
    options: Sequence[str],
    *,
    sampler: Sampler | BeamSearch | None = None,
    force: bool = True,
    policies: Sequence[Policy[Any]] = (),
    draft: Any = None,
) -> Generator:
    """Write one of `options`. The value is the option.

    Raises:
        fsm.ExpressionError: there are no options, or one is not a string.
    """
    made = _constrained(model, fsm_package.choice(options), sampler, force, str, _source("choice", list(options)))
    return _complete(made, policies, draft)


@_generator_function(also_of=fsm_package.json_schema)
def json(
    model: LanguageModel,
    schema: Any,
    *,
    sampler: Sampler | BeamSearch | None = None,
    force: bool = True,
    max_retries: int = MAX_RETRIES,
    policies: Sequence[Policy[Any]] = (),
    draft: Any = None,
    **options: Any,
) -> Generator:
    """Write JSON that validates against `schema`.

    Keywords beyond the automaton (`fsm.json_schema(...).report` lists them) are checked when a value closes. Where a check fails,
    the row goes back into the value and samples it again; `state.retries` counts how often.

    Args:
        model: the model that writes.
        schema: a JSON schema as a dict or as JSON text, a pydantic model, another type that pydantic knows, or a function.
        sampler: how tokens are drawn; greedy by default.
        force: append text without a choice in one chunk instead of sampling it.
        max_retries: how often a row may go back; then it fails with `CheckFailed`.
        policies: policies of every call, such as `[policies.ban(["delve"])]`; every function of this module takes them.
        draft: the draft for speculative decoding, such as `"lookup"`; see `PieceOptions`. Every function of this module takes it.
        **options: given to `fsm.json_schema`, such as `whitespace`, `formats`, `dialect` and `registry`.

    For a tool write `generate.json(model, fsm.tool_schema(tool))`.

    The value is what the type makes of it: an object of a pydantic model, for a schema what `json.loads` returns, for a function
    a dict of its arguments.

    Raises:
        fsm.SchemaError: the schema is malformed, or something around one, such as a tool.
        fsm.EmptyLanguage: nothing satisfies the schema.
    """
    expression = fsm_package.json_schema(schema, **options)
    parse, partial = _parser_of(schema)
    source = _source("json", [schema, options])
    made = replace(_constrained(model, expression, sampler, force, parse, source, max_retries), partial_type=partial)
    return _complete(made, policies, draft)


def _parser_of(schema: Any) -> tuple[Callable[[str], Any], PartialType]:
    """Return the parser of a text, and the type of the value."""
    if isinstance(schema, dict | str | bool):
        return json_module.loads, PartialType.of(Any)
    if not isinstance(schema, FunctionType):
        return TypeAdapter[Any](schema).validate_json, PartialType.of(schema)
    arguments = arguments_of(schema)
    return lambda text: dict(iter(arguments.model_validate_json(text))), PartialType.of(
        arguments, lambda value: dict(iter(value))
    )


@_generator_function()
def format(
    model: LanguageModel,
    type: Any,
    *,
    sampler: Sampler | BeamSearch | None = None,
    force: bool = True,
    policies: Sequence[Policy[Any]] = (),
    draft: Any = None,
) -> Generator:
    """Write one value of a Python type; the value has that type.

    Args:
        model: the model that writes.
        type: `int`, `float`, `bool`, `datetime.date`, `time` or `datetime`, `uuid.UUID`, an `Enum`, or a `Literal`.
        sampler: how tokens are drawn; greedy by default.
        force: append text without a choice in one chunk instead of sampling it.

    Raises:
        OptionError: any other type.
    """
    chosen = format_of(type)
    made = _constrained(model, chosen.expression, sampler, force, chosen.parse, _source("format", type))
    return _complete(made, policies, draft)


@_generator_function(also_of=fsm_package.grammar)
def cfg(
    model: LanguageModel,
    grammar: str,
    *,
    start: str = "start",
    sampler: Sampler | BeamSearch | None = None,
    force: bool = True,
    policies: Sequence[Policy[Any]] = (),
    draft: Any = None,
    **options: Any,
) -> Generator:
    """Write a text that a grammar in the language of Lark describes. The value is the text.

    `options` are given to `fsm.grammar`, such as `ignored` or `strict`.

    Raises:
        fsm.GrammarError: the grammar is malformed, or uses something that is not supported; see `fsm.grammar`.
        fsm.EmptyLanguage, fsm.VocabularyGap: nothing satisfies it, or nothing that the model could write.
    """
    expression = fsm_package.grammar(grammar, start, **options)
    made = _constrained(model, expression, sampler, force, str, _source("cfg", [grammar, start, options]))
    return _complete(made, policies, draft)


@_generator_function()
def fsm(
    model: LanguageModel,
    expression: Expression | str,
    *,
    sampler: Sampler | BeamSearch | None = None,
    force: bool = True,
    max_retries: int = MAX_RETRIES,
    policies: Sequence[Policy[Any]] = (),
    draft: Any = None,
) -> Generator:
    """Write a text of an expression of the package `fsm`; a `str` is the language of exactly that text.

    The value is the text; where parts of the expression have names, it is a dict of their texts (`Expression.captures`).

    Checks of the expression are applied as in `json`, with as many retries.

    Raises:
        OptionError: `expression` is not an expression or a text.
        fsm.EmptyLanguage, fsm.VocabularyGap: nothing satisfies it, or nothing that the model could write.
    """
    if not isinstance(expression, Expression | str):
        raise OptionError(
            f"expected an expression, such as `fsm.regex(...)`, or a text, got {type(expression).__name__}",
            "expression",
        )
    language = lift(expression)
    parse = Captures(language.parts).find if language.parts else str
    made = _constrained(model, language, sampler, force, parse, _source("fsm", expression), max_retries)
    return _complete(made, policies, draft)


def _check(model: LanguageModel, sampler: object) -> None:
    """Raise `OptionError` for an invalid model or sampler when the generator is made, not when it first runs."""
    if not hasattr(model, "eos_token_ids"):
        advice = "Wrap a model of transformers with `models.from_transformers(model, tokenizer)`."
        if isinstance(model, str):
            advice = f"Open a model by its name with `models.transformers({model!r})`; the model comes first, then what is written."
        raise OptionError(
            f"expected a model as the first argument, such as `models.tiny()`, got {type(model).__name__}. {advice}",
            "model",
        )
    if sampler is not None and (isinstance(sampler, type) or not hasattr(sampler, "num_samples")):
        raise OptionError(
            f"expected a sampler as `sampler`, such as `samplers.greedy()` or `samplers.multinomial(3)`, got {sampler!r}. "
            "Call the function: `samplers.greedy()`, not `samplers.greedy`.",
            "sampler",
        )
    if isinstance(sampler, Greedy | Multinomial):
        sampler.penalties.check_vocabulary(model.vocab_size)


def _constrained(
    model: LanguageModel,
    expression: Expression,
    sampler: Sampler | BeamSearch | None,
    force: bool,
    parse: Callable[[str], Any],
    source: str,
    max_retries: int = MAX_RETRIES,
) -> Generator:
    _check(model, sampler)
    checked_bool(force, "force")
    if not is_int(max_retries, 0):
        raise OptionError(
            f"expected a number of times that a piece may go back, 0 or more, got {max_retries!r}. Leave it out for {MAX_RETRIES}.",
            "max_retries",
        )
    if not model.eos_token_ids:
        raise MissingEOS(
            "expected a model with an end-of-sequence token, by which it says that a constrained text is complete; "
            "got one that names none. Set `eos_token_id` in the generation config or the tokenizer before wrapping it."
        )
    plain = Constraint.of_model(model, expression, force=force)
    constraint: Constraint | CheckedConstraint = plain
    if expression.has_checks:
        constraint = CheckedConstraint(plain, expression, TokenSet.of(model.eos_token_ids), max_retries)
    unbounded = expression.report.unbounded
    return Generator(model, sampler or greedy(), constraint, parse, source, unbounded=unbounded)


def _complete(generator: Generator, policies: Sequence[Policy[Any]], draft: Any) -> Generator:
    open_draft(draft, generator.model)  # raises for an invalid argument now, not at the first call
    steering = checked_policies(policies) if policies else ()
    return replace(generator, steering=steering, draft=draft) if steering or draft is not None else generator


def _source(kind: str, value: Any) -> str:
    """Return the arguments of a generator as JSON; classes by their name, values that JSON does not have by their `repr`."""

    def shown(item: Any) -> str:
        return f"{item.__module__}.{item.__qualname__}" if isinstance(item, builtins.type) else repr(item)

    return json_module.dumps({kind: value}, default=shown, ensure_ascii=False)


def made_once(model: LanguageModel, make: partial[Generator]) -> Generator:
    """Return `make(model)`; equal calls, as in a loop or for many rows, return one generator (LRU cache of 64 per model).

    Args:
        model: what writes.
        make: a call of a function of this module that lacks its model, with arguments by name.
    """
    try:
        key = (make.func, _key_of(make.keywords))
        hash(key)
    except TypeError:  # nothing to look it up by
        return make(model)
    known: OrderedDict[object, Generator] = model.memo.setdefault("generators", OrderedDict())
    # Many programs, or rows of templates, that begin at once in several threads would all make the same.
    with _making:
        generator = known.pop(key, None) or make(model)
        known[key] = generator
        if len(known) > _NUM_GENERATORS:
            known.popitem(last=False)
    return generator


def _key_of(arguments: dict[str, Any]) -> Any:
    """Return a hashable key of arguments; JSON by its text, which keeps the order of keys and distinguishes 1 from True."""
    return tuple(
        (name, json_module.dumps(dict(value) if isinstance(value, Mapping) else value))
        if isinstance(value, Mapping | list | tuple | str | int | float | None)
        else (name, builtins.type(value), value)
        for name, value in arguments.items()
    )
