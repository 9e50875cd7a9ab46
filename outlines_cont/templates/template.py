"""`Template`: a prompt program as a Jinja template whose text and generators continue one state (KV cache), parsed and compiled once, and
run in a sandbox within a budget. `run` and `arun` run it once or for many rows together (continuous batching), `iterate` for any number,
`stream` once. Special tokens in it are letters, unless `special`; other files cannot be included.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import cache, partial
from typing import Any, ClassVar, overload

from jinja2 import TemplateSyntaxError, pass_context
from jinja2.environment import Template as JinjaTemplate
from jinja2.runtime import Context

from fsm.errors import stacklevel_of_user
from outlines_cont import generate
from outlines_cont.checks import check, check_model, checked_bool, file_text
from outlines_cont.engine.engine import engine_of
from outlines_cont.engine.job import Task
from outlines_cont.errors import (
    BatchMismatch,
    OptionError,
    SpecialTokenWarning,
    TemplateError,
    shortened,
)
from outlines_cont.events.event import StreamOptions
from outlines_cont.generation.tasks.window import Room, Window
from outlines_cont.interfaces import LanguageModel
from outlines_cont.jinja_sandbox import TemplateBudget, usage
from outlines_cont.models.tokenizer.special_names import control_names_of
from outlines_cont.near_names import NearNames, did_you_mean
from outlines_cont.policies.ban import ban
from outlines_cont.samplers import BeamSearch, beam_search, best_of, greedy, multinomial
from outlines_cont.sampling.params import Sampler
from outlines_cont.sampling.random_stream import RandomStream, Rng, open_seeds
from outlines_cont.state.image_span import PLACEHOLDER
from outlines_cont.state.sequence_state import SequenceState, only_row
from outlines_cont.templates.image_value import ImageValues
from outlines_cont.templates.program import (
    Settings,
    TemplateProgram,
    TemplateResult,
    TemplateSandbox,
    TemplateStream,
    running_program,
)
from outlines_cont.templates.rewriting import CAPTURED, GENERATE, Site, failure, rewritten, syntax_failure

Values = Mapping[str, Any]


class Template(NearNames):
    """A program as a Jinja template: its text is appended to the state, and its generators continue it.

        template = Template("Message: {{ text }}\\nKind: {{ choice('kind', ['order', 'complaint']) }}")
        template.run(model, text="Two lamps, please.").captures["kind"]

    Generators are `gen(name, regex=, ...)`, `choice(name, options)`, `json(name, schema)` and `grammar(name, text)`; names are optional.
    They take the options of a call (`PieceOptions`), `sampler` and `rng`. A name can be read afterwards: `{% if kind == "order" %}`.

    Attributes:
        source: its text.
        special: whether special tokens in its text are control tokens.
        names: the values that it reads.
        generated: the names that it generates, as far as they are constants.
    """

    _advice: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("render", "generate", "format"), "Write `template.run(model, name=value, ...)`."
    )

    def __init__(self, source: str, *, special: bool = False, origin: str = "the template") -> None:
        """Read a template.

        Args:
            source: its text.
            special: special tokens in its text are control tokens, as in a chat template; those in values never are.
                Without it they are letters, except in `{{ "<|im_end|>" | special }}`.
            origin: its name in error messages, such as the name of a file.

        Raises:
            TemplateError: it cannot be parsed, or uses an unsupported construct.
        """
        if not isinstance(source, str):
            raise OptionError(
                f"expected the text of a template, got {type(source).__name__}. A file is read by `Template.from_file(path)`.",
                "source",
            )
        self.source = source
        self.special = checked_bool(special, "special")
        self._environment = _environment()
        try:
            found = rewritten(self._environment.parse(source), frozenset(self._environment.globals), special=special)
            code = self._environment.compile(found.tree)
        except TemplateSyntaxError as error:
            raise syntax_failure(error, source, origin, self._environment.filters) from None
        except TemplateError as error:
            raise TemplateError(f"{origin}, {error}", error.line, error.column) from None
        except (RecursionError, SyntaxError, MemoryError) as error:
            raise TemplateError(
                f"{origin}: expected a template that Python can compile, but it is nested too deeply or too large"
            ) from error
        self.names, self.generated = found.names, found.generated
        self._rewritten = found
        self._template = JinjaTemplate.from_code(self._environment, code, self._environment.globals)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], *, special: bool = False) -> Template:
        """Read a template from a file in UTF-8; one line break at its end does not count. For `special` see `Template`.

        Raises:
            TemplateError: the file cannot be read, or is not a valid template.
        """
        source = file_text(path, "as the template", TemplateError)
        return cls(source.removesuffix("\n"), special=special, origin=repr(str(path)))

    def __repr__(self) -> str:
        return f"Template({shortened(self.source)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text."""
        return partial(Template, special=self.special), (self.source,)

    @overload
    def run(
        self,
        model: LanguageModel,
        /,
        rows: None = None,
        *,
        state: SequenceState | None = None,
        rng: Rng = None,
        sampler: Sampler | BeamSearch | None = None,
        budget: TemplateBudget | None = None,
        **values: Any,
    ) -> TemplateResult: ...

    @overload
    def run(
        self,
        model: LanguageModel,
        /,
        rows: Iterable[Values],
        *,
        state: SequenceState | None = None,
        rng: Rng = None,
        sampler: Sampler | BeamSearch | None = None,
        budget: TemplateBudget | None = None,
        **values: Any,
    ) -> list[TemplateResult]: ...

    def run(
        self,
        model: LanguageModel,
        /,
        rows: Iterable[Values] | None = None,
        *,
        state: SequenceState | None = None,
        rng: Rng = None,
        sampler: Sampler | BeamSearch | None = None,
        budget: TemplateBudget | None = None,
        **values: Any,
    ) -> TemplateResult | list[TemplateResult]:
        """Run the template, or one run for each of many rows, together.

        Args:
            model: the model.
            rows: dicts of values, a run for each; `values` are for all of them. Rows share the forwards of the model wherever they are
                in the template, and a common beginning is fed once.
            state: a state of one row that the template continues.
            rng: a seed for samplers that draw, or a list with a seed per row, as for a generator.
            sampler: the sampler of generators without one; greedy by default.
            budget: the limits of each run; `TemplateBudget()` by default.
            **values: the values that the template reads.

        Returns:
            The result; with `rows` the list of results, in order, each with its own error.

        Raises:
            TemplateError, BudgetError: without `rows`: the template fails, in the line that they name.
            IncompleteOutput, and other errors of generators: without `rows`. The attribute `result` is the result until then.
            OptionError: a value that the template does not read, or an argument out of its range.
        """
        several = rows is not None
        programs = self._programs(model, rows, values, state, rng, sampler, budget)
        results = [program.result() for program in engine_of(model).items(_together(model, programs))]
        return results if several else results[0].check()

    @overload
    async def arun(
        self,
        model: LanguageModel,
        /,
        rows: None = None,
        *,
        state: SequenceState | None = None,
        rng: Rng = None,
        sampler: Sampler | BeamSearch | None = None,
        budget: TemplateBudget | None = None,
        **values: Any,
    ) -> TemplateResult: ...

    @overload
    async def arun(
        self,
        model: LanguageModel,
        /,
        rows: Iterable[Values],
        *,
        state: SequenceState | None = None,
        rng: Rng = None,
        sampler: Sampler | BeamSearch | None = None,
        budget: TemplateBudget | None = None,
        **values: Any,
    ) -> list[TemplateResult]: ...

    async def arun(
        self,
        model: LanguageModel,
        /,
        rows: Iterable[Values] | None = None,
        *,
        state: SequenceState | None = None,
        rng: Rng = None,
        sampler: Sampler | BeamSearch | None = None,
        budget: TemplateBudget | None = None,
        **values: Any,
    ) -> TemplateResult | list[TemplateResult]:
        """The asynchronous form of `run`: it does not block the event loop, and a cancelled task releases its rows."""
        several = rows is not None
        programs = self._programs(model, rows, values, state, rng, sampler, budget)
        task = _together(model, programs)
        results = [program.result() async for program in engine_of(model).async_items(task)]
        return results if several else results[0].check()

    def iterate(
        self,
        model: LanguageModel,
        /,
        rows: Iterable[Values],
        *,
        state: SequenceState | None = None,
        rng: Rng = None,
        sampler: Sampler | BeamSearch | None = None,
        budget: TemplateBudget | None = None,
        **values: Any,
    ) -> Iterator[TemplateResult]:
        """Run as `run` does with `rows`, but yield each result, in order, as soon as possible. Rows are taken when there is room
        for them, so their number is unlimited.
        """
        programs = self._programs(model, rows, values, state, rng, sampler, budget)
        return (program.result() for program in engine_of(model).items(_together(model, programs)))

    def stream(
        self,
        model: LanguageModel,
        /,
        *,
        top: int = 0,
        state: SequenceState | None = None,
        rng: Rng = None,
        sampler: Sampler | BeamSearch | None = None,
        budget: TemplateBudget | None = None,
        **values: Any,
    ) -> TemplateStream:
        """Run the template once, and yield the new text after each step.

            stream = template.stream(model, text="Two lamps, please.")
            for event in stream:
                print(event.text, end="")
            stream.result.captures

        Args:
            model: the model.
            top: for each drawn token, report this number of the most probable ones, with their log-probabilities.
            state: as for `run`; so are the others.

        Returns:
            A stream to iterate over, also with `async for`; its `result` is the result so far.
        """
        shown = StreamOptions(True, top, False)
        programs = self._programs(model, None, values, state, rng, sampler, budget, shown)
        return TemplateStream(model, next(programs))

    def check_values(self, values: Iterable[str]) -> None:
        """Raise `OptionError` for the name of a value that the template does not read."""
        for name in values:
            if name in self.generated:
                raise OptionError(f"expected values that the template reads, got {name!r}, which it generates", name)
            if name not in self.names:
                read = ", ".join(sorted(self.names)) or "none"
                raise OptionError(
                    f"expected values that the template reads ({read}), got {name!r}.{did_you_mean(name, self.names)}",
                    name,
                )

    def _programs(
        self,
        model: LanguageModel,
        rows: Iterable[Values] | None,
        values: Values,
        state: SequenceState | None,
        rng: Rng,
        sampler: Sampler | BeamSearch | None,
        budget: TemplateBudget | None,
        shown: StreamOptions | None = None,
    ) -> Iterator[TemplateProgram]:
        """Return the runs of some rows, lazily; arguments that do not depend on a row are checked here."""
        is_single, rows = rows is None, [{}] if rows is None else rows
        check_model(model)
        generate.text(model, sampler=sampler)
        self.check_values(values)
        _check_state(model, state)
        advice = "Write `TemplateBudget(tokens=..., seconds=...)`."
        check("budget", budget, isinstance(budget, TemplateBudget | None), "a `TemplateBudget` or None", advice)
        if budget is not None and budget.kv_bytes is not None:
            raise OptionError(
                "expected no `kv_bytes` for a template, which is one sequence, got a limit. Give `tokens` instead.",
                "kv_bytes",
            )
        if isinstance(rows, Mapping | str) or not isinstance(rows, Iterable):
            raise OptionError(
                f"expected a list of dicts as `rows`, got {type(rows).__name__}. For one row write `**row`.", "rows"
            )
        self._warn_of_special(model)
        failed = partial(failure, self._template, self.source, self._rewritten.columns, called=self._rewritten.called)
        found = self._rewritten
        settings = Settings(model, sampler, budget or TemplateBudget(), found.in_loops, failed, ImageValues(model))
        stream_of = _streams(rng, state, rows, is_single=is_single)

        def program(index: int, row: Values) -> TemplateProgram:
            if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
                raise OptionError(f"expected a dict with names as row {index}, got {shortened(repr(row), 200)}", "rows")
            stream, given, begun = stream_of(index), {**values, **row}, state
            if state is not None:
                begun = SequenceState(state.model, ((replace(state.rows[0][0], stream=stream),),), stream.seed)
            return TemplateProgram(self._template, {"row": given, **given}, settings, begun, stream, shown)

        return (program(index, row) for index, row in enumerate(rows))

    def _warn_of_special(self, model: LanguageModel) -> None:
        """Warn about a special token in the text of the template, which is encoded as letters."""
        names = control_names_of(model.tokenizer)
        texts = () if self.special else self._rewritten.texts
        name = next((found for text in texts if (found := names.first_in(text)) is not None), None)
        if name is not None:
            image = " An image is a value, `{{ scan }}`." if name == PLACEHOLDER else ""
            warnings.warn(
                f"expected a template without special tokens, got one in which {name!r} is written, whose letters are encoded. For the "
                f"control token write {{{{ {name!r} | special }}}}, or give `special=True` for all of the template. A "
                f"special token in a value is always letters, and does not warn.{image}",
                SpecialTokenWarning,
                stacklevel=stacklevel_of_user(),
            )


def _together(model: LanguageModel, programs: Iterable[TemplateProgram]) -> Task:
    """Return programs as one task, whose items are they themselves, in order, after their end.

    Twice as many as the engine has rows run together; up to four times as many are kept until those before them have ended.
    """
    room = Room(2 * engine_of(model).max_rows)
    return Window(programs, room, ahead=4 * room.size).task()


def _streams(
    rng: Rng, state: SequenceState | None, rows: Iterable[Values], *, is_single: bool
) -> Callable[[int], RandomStream]:
    """Return a function that makes the random stream of a row: as in a batch of texts, or a fork of the stream of the state."""
    if state is not None and rng is None:
        base = state.rows[0][0].stream
        return lambda index: base if is_single else base.fork(index)
    if isinstance(rng, Sequence) and not isinstance(rng, str | bytes):
        seeds = open_seeds(rng, len(rows) if isinstance(rows, Sized) else len(rng))

        def listed(index: int) -> RandomStream:
            if index >= len(seeds):
                raise BatchMismatch(f"expected a seed in `rng` for each row, got {len(seeds)} and more rows")
            return RandomStream(seeds[index])

        return listed
    first = open_seeds(rng, 1)  # it is checked before the first row is made
    return lambda index: RandomStream((first if index == 0 else open_seeds(rng, 1))[0])


def _check_state(model: LanguageModel, state: SequenceState | None) -> None:
    if state is None:
        return
    if not isinstance(state, SequenceState):
        raise OptionError(
            f"expected a SequenceState or None as `state`, got {type(state).__name__}. A value of the template by this name is given in "
            "`rows=[{'state': ...}]`.",
            "state",
        )
    only_row(state, model, "a template")


@cache
def _environment() -> TemplateSandbox:
    made = TemplateSandbox()
    made.globals |= {function.__name__: function for function in (greedy, multinomial, best_of, beam_search, ban)}
    made.filters |= {
        # Filters with a context are not evaluated at compile time.
        GENERATE: _generate,
        CAPTURED: _captured,
    }
    return made


@pass_context
def _generate(context: Context, site: tuple[Any, ...], /, *args: Any, **options: Any) -> Any:
    usage().step()
    return running_program.get().generate(Site(*site), args, options)


@pass_context
def _captured(context: Context, name: str | None) -> Any:
    program = running_program.get()
    if name is None:
        return program.captures
    try:
        return program.captured(name)
    except KeyError:
        return context.environment.undefined(hint=f"{name!r} is not generated yet", name=name)
