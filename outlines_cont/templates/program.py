"""`TemplateResult`: text, captures, state, finish reasons and error of a run of a template; after an error, those until then.

`TemplateSandbox`: the sandbox in which templates run, where values may be images.

`TemplateProgram`: one run of a template as a coroutine (Jinja's asynchronous rendering), which is suspended at each generator until its
span (a `TemplatePiece`) has ended, and its value is captured; there is no event loop. Text between two generators is encoded as one (but
for images in it), and fed with the second; errors are thrown into the template, so that they have a line. `Settings`: those of all rows of
a call.

`TemplateStream`: iterates once over the events of one run, in a `for` or `async for` loop. Text between two generators and that of a
search is one event, which has no tokens; leaving a `for` loop ends the run, but an `async for` loop only with `async with` around it.

`KINDS`: the functions by which a template generates (`gen`, `choice`, `json`, `grammar`), and `piece_of`: the span that a call of one
requests, with its arguments checked. Equal generators are made once; a sampler must give one text: of `best_of` and beam search the best.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter, signature
from types import MappingProxyType, coroutine
from typing import Any, Self

from jinja2 import Undefined, pass_context
from jinja2.environment import Template as JinjaTemplate
from jinja2.nodes import Impossible
from jinja2.runtime import Context

import fsm
from outlines_cont import generate
from outlines_cont.budget import Budget
from outlines_cont.checks import check, names_of, unknown_option
from outlines_cont.engine.engine import engine_of
from outlines_cont.engine.job import Step, Task
from outlines_cont.errors import (
    EmptyPrompt,
    ForkBudgetError,
    OptionError,
    TemplateError,
    TokenBudgetError,
    shortened,
    with_result,
)
from outlines_cont.events.event import StreamEvent, StreamOptions
from outlines_cont.generate import ENDS
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import OPTIONS_ELSEWHERE, Options, PieceOptions, check_one_constraint
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.generation.stream import RunEvents, TaskStream
from outlines_cont.interfaces import LanguageModel
from outlines_cont.jinja_sandbox import BoundedSandbox, TemplateUsage, running_usage
from outlines_cont.kv.pixel_store import ReadImage
from outlines_cont.models.image_file import is_picture
from outlines_cont.models.tokenizer.special_names import control_names_of
from outlines_cont.near_names import NearKeys, NearNames
from outlines_cont.policies.constraint import EndMode
from outlines_cont.samplers import BeamSearch, BestOf, gives_one_text
from outlines_cont.sampling.params import Sampler
from outlines_cont.sampling.random_stream import RandomStream, Rng
from outlines_cont.state.image_span import PLACEHOLDER
from outlines_cont.state.row import StateRow, written
from outlines_cont.state.seeing import image_after
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.text import kept_tokens
from outlines_cont.state.tokens import Tokens, check_length, prompt_ids, prompt_row
from outlines_cont.templates.image_value import READABLE, ImageValues, check_images, image_of, written_image
from outlines_cont.templates.marked_text import MarkedText, image_text, images_of, joined, special_text, tokens_of
from outlines_cont.templates.rewriting import SPECIAL, PlacedLexer, Site, SourcePlace
from outlines_cont.user_code import shielded


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TemplateResult(NearNames):
    """The result of a run of a template.

    Attributes:
        text: all text that was written and generated, in order.
        state: the same as a state, to be continued; the tokens of a given state are in front. None if there is no token yet.
        captures: the values by name, in the order of generation: a text, or the parsed value of JSON and of generators of types. A name
            that is generated in a loop, or several times, has the list of its values.
        finish_reasons: of each capture, in the same shape: `stop`, `constraint` or `length`.
        error: the error of the run, or None; after an error the other attributes are those until then.
    """

    text: str
    state: SequenceState | None
    captures: Mapping[str, Any]
    finish_reasons: Mapping[str, Any]
    error: Exception | None = None

    def check(self) -> Self:
        """Return this result, or raise its error, whose attribute `result` is this result."""
        if self.error is not None:
            raise with_result(self.error, self)
        return self

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        error = "" if self.error is None else f", error: {self.error!r}"
        return f"TemplateResult({dict(self.captures)!r}, {len(self.text)} characters{error})"


class TemplateSandbox(BoundedSandbox):
    """The Jinja environment of prompt programs: asynchronous, with columns for tokens, and marks and images in texts."""

    def __init__(self) -> None:
        super().__init__(enable_async=True, keep_trailing_newline=True)
        self.filters["special"] = self.counted(_special, "special")
        # A filter with a context is not evaluated at compile time.
        self.filters[SPECIAL] = pass_context(lambda _, text: _special(text))
        self.filters["image"] = pass_context(lambda _, value: _image(value))

    @property
    def lexer(self) -> PlacedLexer:
        """A lexer with the column of each token."""
        return PlacedLexer(self)

    def joined(self, texts: Sequence[str]) -> str:
        """Concatenate texts, with their marks and images."""
        return joined(texts)

    def written(self, value: Any) -> Any:
        """Return what is written for a value: for an image the image itself."""
        source = None if isinstance(value, str | Undefined) else written_image(value)
        return super().written(value) if source is None else _read(source)

    def counted(self, function: Any, name: str) -> Any:
        """Return a filter that is charged, and fails where an image would be lost in its result."""
        made = super().counted(function, name)

        def counted(context: Context, value: Any, *args: Any, **options: Any) -> Any:
            result = made(context, value, *args, **options)
            check_images(f"the filter `{name}`", (value, *args), result)
            return result

        return pass_context(counted)

    def call(self, context: Context, callee: Any, /, *args: Any, **options: Any) -> Any:
        """Call a function or method; one of a text fails where an image would be lost in its result."""
        result = super().call(context, callee, *args, **options)
        owner = getattr(callee, "__self__", None)
        if isinstance(owner, str):
            check_images(f"the method `{callee.__name__}`", (owner, *args), result)
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right`; `+` of texts keeps the images in them."""
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, str) and (images_of(left) or images_of(right)):
            result = joined([left, right]) if operator == "+" else result
            check_images(f"`{operator}`", (left, right), result)
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Return whether a template may read an attribute: of an image only its size and the like, as its methods write files."""
        return super().is_safe_attribute(obj, attr, value) and (attr in READABLE or not is_picture(obj))


def _special(text: Any) -> MarkedText:
    """Return a text in which special tokens are control tokens."""
    if not isinstance(text, str):
        raise TemplateError(f"expected a text before `special`, got {type(text).__name__}")
    return special_text(text)


def _image(value: Any) -> str:
    """Return the text of the image that a value is; one that is a text already, as of a block that was collected, stays it."""
    is_done = isinstance(value, Undefined) or (isinstance(value, str) and images_of(value))
    return str(value) if is_done else _read(image_of(value))  # a name without a value raises


def _read(source: object) -> MarkedText:
    """Return the text of an image, which is read for the model of the program that runs."""
    program = running_program.get(None)
    if program is None:
        raise Impossible  # for Jinja, which then evaluates it when a program runs
    return program.see(source)


running_program: ContextVar[TemplateProgram] = ContextVar("template")
"""The program that runs."""


@dataclass(frozen=True, slots=True)
class TemplatePiece:
    """A span to be generated; its value is captured under `name`. Without `rng` the random numbers of the row continue."""

    name: str | None
    generator: PieceMaker
    options: Options
    rng: Rng = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that all rows of a call share.

    Attributes:
        sampler: the sampler of generators without one.
        in_loops: names whose captures are lists.
        failure: returns an error with its line, given the error, the position of the generator that ran, and names that had a value.
        images: reads those among the values.
    """

    model: LanguageModel
    sampler: Sampler | BeamSearch | None
    budget: Budget
    in_loops: frozenset[str]
    failure: Callable[[Exception, SourcePlace | None, Iterable[str]], Exception] = field(repr=False)
    images: ImageValues


@dataclass(slots=True, eq=False, repr=False)
class TemplateProgram:
    """One run of a template.

    Attributes:
        error: the error it failed with, or None.
    """

    _template: JinjaTemplate
    _values: Mapping[str, Any]
    _settings: Settings
    _state: SequenceState | None
    _stream: RandomStream
    _shown: StreamOptions | None = None
    error: Exception | None = None
    _usage: TemplateUsage = field(init=False)  # from the beginning of `task` on
    _num_given: int = field(init=False)
    _given_text: str = field(init=False)
    _written: list[str] = field(default_factory=list)  # text that is not part of the state yet
    _news: list[StreamEvent] = field(default_factory=list)  # for a stream: what was appended since the last event
    _captures: dict[str, list[Any]] = field(default_factory=dict)
    _reasons: dict[str, list[str]] = field(default_factory=dict)
    _call: Call | None = None  # which generates a span
    _at: SourcePlace | None = None  # the position of the generator that runs
    _num_image_tokens: int = 0  # of the images in the text that is not part of the state yet
    _limit: int | None = None  # of the tokens of the piece, if the budget has set it

    def __post_init__(self) -> None:
        self._num_given = 0 if self._state is None else len(self._state.rows[0][0].token_ids)
        self._given_text = "" if self._state is None else str(self._state)

    async def generate(self, site: Site, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """Generate a span; return its value, or an empty text if the template would write the value again."""
        settings, self._at = self._settings, site.place
        piece = piece_of(site.kind, args, options, settings.model, settings.sampler)
        sampler = piece.generator.sampler
        num_texts = sampler.beams if isinstance(sampler, BeamSearch) else sampler.num_samples or 1
        self._usage.check(ForkBudgetError, num_texts)
        value = await _ask(piece)
        self._at = None
        return "" if site.is_written else value

    def see(self, source: object) -> MarkedText:
        """Return the text of an image; see `ImageValues.read`. Its tokens count when it is written."""
        self._usage.step()
        return image_text(self._settings.images.read(source))

    def captured(self, name: str) -> Any:
        """Return the last value that was generated under a name; raise `KeyError` if there is none."""
        return self._captures[name][-1]

    @property
    def captures(self) -> dict[str, Any]:
        """All captures so far, as in the result."""
        return self._shaped(self._captures)

    def task(self) -> Task:
        """Return the run as a task, whose items are the events of a stream; closing it keeps the text so far."""
        self._usage = TemplateUsage(self._settings.budget)
        main = self._write()
        send: Callable[[], object] = partial(main.send, None)
        try:
            try:
                while (piece := self._next_piece(main, send)) is not None:
                    try:
                        send = partial(main.send, (yield from self._span(piece)))
                    except Exception as error:  # raised in the template, so that it has a line
                        send = partial(main.throw, error)
            except Exception as error:
                self.error = self._settings.failure(error, self._at, [*self._values, *self._captures])
                traceback.clear_frames(self.error.__traceback__)  # they refer to keys and values
        finally:
            main.close()
        yield from self._take_news()

    def result(self) -> TemplateResult:
        """Return the result so far."""
        call = self._call
        state = self._state if call is None or _is_search(call.maker) else call.snapshot()
        text = "" if state is None else str(state)[len(self._given_text) :]
        captures, reasons = NearKeys(self.captures), NearKeys(self._shaped(self._reasons))
        return TemplateResult(text, state, MappingProxyType(captures), MappingProxyType(reasons), self.error)

    async def _write(self) -> None:
        """Run the template; text between two generated spans is appended to the state before the second one."""
        parts = self._template.root_render_func(self._template.new_context({**self._values}))
        async for part in parts:  # type: ignore[attr-defined]
            try:
                self._usage.characters(len(part))
                self._written.append(part)
                self._num_image_tokens += sum(len(image.token_ids) for image in images_of(part))
                if self._num_image_tokens:  # at once, as a short loop may write many
                    self._usage.check(TokenBudgetError, self._num_tokens + self._num_image_tokens)
            except Exception as error:
                await parts.athrow(error)  # type: ignore[attr-defined]  # so that the error has a line
        self._flush()

    def _next_piece(
        self, main: Coroutine[TemplatePiece, Any, None], send: Callable[[], object]
    ) -> TemplatePiece | None:
        """Run the template to its next generated span, and return that; None at its end."""
        usage, program = running_usage.set(self._usage), running_program.set(self)
        try:
            request = shielded(send)
            if isinstance(request, TemplatePiece):
                return request
            # A function of the template awaited something else, such as a future.
            advice = "Call it before, and give its result."
            told = f"expected a function that can be called, got one that waits for an event loop. {advice}"
            shielded(main.throw, TemplateError(told))
            raise TemplateError("expected a template that ends after an error, but it continues")
        except StopIteration:
            return None
        finally:
            running_program.reset(program)
            running_usage.reset(usage)

    def _span(self, piece: TemplatePiece) -> Generator[Any, None, Any]:
        """Generate a span, with the events of a stream; return its value."""
        generator = piece.generator
        self._flush()
        yield from self._take_news()
        before, options = self._current_state(), self._limit_tokens(piece)
        # Events have the log-probabilities of forced tokens at the end; else these are computed with what follows, or when they are read.
        call = self._call = Call(generator, before, options, rng=piece.rng, score_last=self._shown is not None)
        events = None if self._shown is None or _is_search(generator) else RunEvents(call, self._shown)
        task = call.task(None if events is None else events.pull)
        marks = _ShownMarks(call, len(before.rows[0][0].token_ids))
        try:
            for item in task:
                yield from [item] if isinstance(item, Step) else marks.shown(item, piece.name)
                self._usage.check_time()
        except BaseException:  # the text so far is kept
            left = call.leave()
            self._state = before if _is_search(generator) else left
            raise
        finally:
            task.close()
            self._call = None
        state = call.state()
        state = state.best() if isinstance(generator.sampler, BeamSearch) else state
        row = state.rows[0][0]
        self._state = state if row.error is None else _refreshed(before, row)
        if self._shown is not None and events is None:
            self._news.append(StreamEvent(text=str(self._state)[len(str(before)) :], name=piece.name))
        used = len(row.token_ids) - self._num_given
        if self._limit is not None and row.finish_reason == "length" and used >= self._limit:
            self._usage.check(TokenBudgetError, used + 1)
        value = generator.value_of(state, piece.options.max_tokens)
        if piece.name is not None:
            self._captures.setdefault(piece.name, []).append(value)
            self._reasons.setdefault(piece.name, []).append(row.finish_reason)
        return value

    def _limit_tokens(self, piece: TemplatePiece) -> Options:
        """Return the options of a span with at most as many tokens as the budget has left; thoughts have as many at most."""
        limit, used, options = self._settings.budget.tokens, self._num_tokens, piece.options
        thinking = piece.generator.thinking_of(options)
        if limit is not None and thinking is not None and used < limit:
            most = limit - used if thinking.max_tokens is None else min(thinking.max_tokens, limit - used)
            options = replace(options, thinking=replace(thinking, max_tokens=most))
        self._limit = None
        if limit is None or (options.max_tokens is not None and used + options.max_tokens <= limit):
            return options
        if used >= limit:
            self._usage.check(TokenBudgetError, used + 1)
        self._limit = limit
        return replace(options, max_tokens=limit - used, given=options.given | {"max_tokens"})

    @property
    def _num_tokens(self) -> int:
        return 0 if self._state is None else len(self._state.rows[0][0].token_ids) - self._num_given

    def _take_news(self) -> Iterator[StreamEvent]:
        news, self._news = self._news, []
        return iter(news)

    def _flush(self) -> None:
        """Append the text that was written to the state; consecutive texts are encoded as one, up to an image."""
        written, self._written, self._num_image_tokens = self._written, [], 0
        for part in tokens_of(written, control_names_of(self._settings.model.tokenizer)):
            if self._shown is not None:
                self._news.append(StreamEvent(text=PLACEHOLDER if isinstance(part, ReadImage) else part.text))
            if isinstance(part, ReadImage):
                self._state = self._seen(part)
            else:
                self._state = self._state_with(part) if self._state is None else self._state.append(part)
        self._usage.check(TokenBudgetError, self._num_tokens)

    def _seen(self, image: ReadImage) -> SequenceState:
        """Return the state with an image after it, which is fed with what follows."""
        state = self._state_with(Tokens("")) if self._state is None else self._state
        row = image_after(state.rows[0][0], image)
        check_length(self._settings.model, row.token_ids, "row with its images")
        return replace(state, rows=((row,),))

    def _state_with(self, text: Tokens) -> SequenceState:
        model = self._settings.model
        token_ids, num_start = prompt_ids(text, model)
        self._usage.check(TokenBudgetError, len(token_ids))
        check_length(model, token_ids)
        row = prompt_row(token_ids, model, self._stream, num_start)
        return SequenceState(model, ((row,),), self._stream.seed)

    def _current_state(self) -> SequenceState:
        if self._state is None:
            state = self._state_with(Tokens(""))
            if not state.rows[0][0].token_ids:
                raise EmptyPrompt(
                    "expected some text before the first generator: the tokenizer puts no token at the beginning, so there would be "
                    "nothing to continue. Write some, such as a line break."
                )
            self._state = state
        return self._state

    def _shaped(self, found: Mapping[str, list[Any]]) -> dict[str, Any]:
        """Return values by name: lists for names in loops, and for those with several values."""
        lists = self._settings.in_loops
        shaped = {name: [*items] if name in lists or len(items) > 1 else items[0] for name, items in found.items()}
        return shaped | {name: [] for name in sorted(lists - shaped.keys())}


class TemplateStream(TaskStream):
    """Events of one run, to be iterated once: `for event in stream`, or `async for event in stream`.

    Nothing is computed before iteration begins. Breaking out of the loop ends the run, and `result` stays what it is then. After
    `async for` close the stream explicitly (`async with`), as Python finalizes asynchronous generators later. After the last event
    errors are raised as by `Template.run`.
    """

    def __init__(self, model: LanguageModel, program: TemplateProgram) -> None:
        super().__init__(engine_of(model))
        self._program, self._running = program, program.task()

    @property
    def result(self) -> TemplateResult:
        """The result so far, also in the middle of a generated span."""
        return self._program.result()

    def _task(self) -> Task:
        yield from self._running
        self.result.check()

    def close(self) -> None:
        """End the run; `result` stays what it is now."""
        super().close()
        self._running.close()


class _ShownMarks:
    """The marks around the thoughts of a span; they are in the text, but in no event."""

    def __init__(self, call: Call, num_given: int) -> None:
        self._call, self._num_given = call, num_given
        self._has_begun = self._has_ended = False

    def shown(self, events: Iterable[StreamEvent], name: str | None) -> Iterator[StreamEvent]:
        """Yield the events of a row as those of the template, with the marks before them."""
        for event in events:
            if mark := self._before(event):
                yield StreamEvent(text=mark)
            yield replace(event, name=name)

    def _before(self, event: StreamEvent) -> str:
        """Return what comes before an event; mostly nothing."""
        (row,) = self._call.rows
        thoughts = None if row is None else row.piece.thoughts
        if row is None or thoughts is None or self._has_ended:
            return ""
        ids, tokenizer = row.token_ids, self._call.maker.model.tokenizer
        found = b"" if self._has_begun else b"".join(written(ids[self._num_given : thoughts.start], tokenizer))
        self._has_begun = True
        if not event.is_thought:
            self._has_ended = True
            found += b"".join(written(ids[thoughts.start : row.piece_start], tokenizer))[
                len(thoughts.data(ids, tokenizer)) :
            ]
        return found.decode(errors="replace")


@coroutine
def _ask(piece: TemplatePiece) -> Generator[TemplatePiece, Any, Any]:
    return (yield piece)


def _is_search(generator: PieceMaker) -> bool:
    """Return whether a span is generated by a search, so that its text is known at the end only."""
    return isinstance(generator.sampler, BeamSearch | BestOf)


def _refreshed(state: SequenceState, fed: StateRow) -> SequenceState:
    """Return a state of one row with the log-probabilities, keys, values and logits that another has of the tokens they have in common."""
    row = state.rows[0][0]
    count = min(len(row.token_ids), len(fed.token_ids))
    if fed.token_ids[:count] != row.token_ids[:count]:
        return state
    kept = kept_tokens(fed, count)
    logits = kept.logits if count == len(row.token_ids) and fed.error is None else None
    logprobs = kept.logprobs + row.logprobs[count:]
    fresh = replace(row, kv=kept.kv, logits=logits, logprobs=logprobs, unscored=kept.unscored)
    return replace(state, rows=((fresh,),))


_Made = generate.Generator | partial[generate.Generator]
_OF_CALLS = frozenset(PieceOptions.__annotations__) - {"on_progress"}


def piece_of(
    kind: str,
    args: Sequence[Any],
    options: Mapping[str, Any],
    model: LanguageModel,
    sampler: Sampler | BeamSearch | None,
) -> TemplatePiece:
    """Return the generated span that `{{ kind(*args, **options) }}` requests; `sampler` is the default.

    Raises:
        UnknownOption, OptionError: an option is unknown, or out of its range.
        TemplateError: the arguments do not fit.
        fsm.FSMError: the constraint is malformed, or nothing satisfies it.
    """
    function, makers, usage = KINDS[kind]
    own = signature(function).parameters
    named = {n: p for n, p in own.items() if p.kind is not Parameter.VAR_KEYWORD}
    known = [*named, *sorted(_OF_CALLS), "rng", "sampler", *makers]
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        raise unknown_option(f"`{kind}`", unknown, known, OPTIONS_ELSEWHERE.get(unknown, ""))
    of_call = {name: value for name, value in options.items() if name in _OF_CALLS}
    of_maker = {name: value for name, value in options.items() if name in named or name in makers}
    try:
        signature(function).bind(*args, **of_maker)
    except TypeError as error:
        raise TemplateError(f"expected `{usage}`, got other arguments: {error}") from error
    name, made = function(*args, **of_maker)
    if name is not None and (not isinstance(name, str) or not name):
        raise TemplateError(
            f"expected a name, or none, as the first argument, as in `{usage}`, got {shortened(repr(name), 200)}"
        )
    generator = made if isinstance(made, generate.Generator) else generate.made_once(model, made)
    if generator.model is not model:
        raise OptionError(
            f"expected a generator of {model!r}, the model that runs, got one of {generator.model!r}", "generator"
        )
    chosen = options.get("sampler", None if isinstance(made, generate.Generator) else sampler)
    return TemplatePiece(name, _with_sampler(generator, chosen), Options.of(of_call), options.get("rng"))


def _gen(
    name: Any = None,
    generator: Any = None,
    *,
    regex: Any = None,
    choice: Any = None,
    json: Any = None,
    grammar: Any = None,
    force: bool = True,
    end: EndMode | None = None,
) -> tuple[Any, _Made]:
    given = {"generator": generator, "regex": regex, "choice": choice, "json": json, "grammar": grammar}
    check_one_constraint(given)
    if generator is not None and not isinstance(generator, generate.Generator):
        raise OptionError(
            f"expected a generator, such as `generate.format(model, int)`, got {type(generator).__name__}. A pattern is given by its "
            "name: `regex=`.",
            "generator",
        )
    return name, generator or generate.maker_of(given, force=force, end=end)


def _choice(
    name: Any, options: Any, *, exact: bool | None = None, force: bool = True, end: EndMode | None = None
) -> tuple[Any, _Made]:
    advice = f"Write [{options!r}] for a single option."
    check("options", options, not isinstance(options, str), "a list of options", advice)
    return name, partial(generate.choice, options=list(options), exact=exact, force=force, end=end)


def _json(
    name: Any, schema: Any, *, force: bool = True, end: EndMode = ENDS["json"], **options: Any
) -> tuple[Any, _Made]:
    return name, partial(generate.json, schema=schema, force=force, end=end, **options)


def _grammar(
    name: Any, grammar: Any, *, start: str = "start", force: bool = True, end: EndMode = ENDS["cfg"], **options: Any
) -> tuple[Any, _Made]:
    return name, partial(generate.cfg, grammar=grammar, start=start, force=force, end=end, **options)


KINDS: dict[str, tuple[Callable[..., tuple[Any, _Made]], tuple[str, ...], str]] = {
    "gen": (_gen, (), 'gen("name", regex=..., max_tokens=...)'),
    "choice": (_choice, (), 'choice("name", ["one", "other"])'),
    "json": (
        _json,
        (*names_of(fsm.json_schema)[1:], "exact_fields", "max_retries", "max_rejections"),
        'json("name", schema)',
    ),
    "grammar": (_grammar, tuple(names_of(fsm.grammar)[2:]), 'grammar("name", text)'),
}
"""The functions by which a template generates, the names of their `**options`, and an example of each."""


def _with_sampler(generator: generate.Generator, sampler: Any) -> generate.Generator:
    """Return the generator with another sampler, if one is given; raise for a sampler of several texts."""
    chosen = generator.sampler if sampler is None else generate.text(generator.model, sampler=sampler).sampler
    if not gives_one_text(chosen):
        raise OptionError(
            f"expected a sampler of one text, got {chosen!r}. A template needs one: `best_of({chosen.num_samples})` takes the best.",
            "sampler",
        )
    return generator if chosen is generator.sampler else replace(generator, sampler=chosen)
