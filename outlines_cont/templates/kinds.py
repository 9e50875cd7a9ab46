"""`KINDS`: the functions by which a template generates (`gen`, `choice`, `json`, `grammar`), and `piece_of`: the span that a call of one
requests, with its arguments checked. Equal generators are made once; a sampler must give one text: of `best_of` and beam search the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import Parameter, signature
from typing import Any

import fsm
from outlines_cont import generate
from outlines_cont.checks import names_of, unknown_option
from outlines_cont.errors import OptionError, TemplateError, shortened
from outlines_cont.generate import ENDS, Generator
from outlines_cont.generation.options import OPTIONS_ELSEWHERE, Options, PieceOptions, check_one_constraint
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.constraint import EndMode
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.sampling.params import Sampler
from outlines_cont.templates.program import TemplatePiece

_Made = Generator | partial[Generator]
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
    generator = made if isinstance(made, Generator) else generate.made_once(model, made)
    if generator.model is not model:
        raise OptionError(
            f"expected a generator of {model!r}, the model that runs, got one of {generator.model!r}", "generator"
        )
    chosen = options.get("sampler", None if isinstance(made, Generator) else sampler)
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
    if generator is not None and not isinstance(generator, Generator):
        raise OptionError(
            f"expected a generator, such as `generate.format(model, int)`, got {type(generator).__name__}. A pattern is given by its "
            "name: `regex=`.",
            "generator",
        )
    return name, generator or generate.maker_of(given, force=force, end=end)


def _choice(name: Any, options: Any, *, force: bool = True, end: EndMode = ENDS["choice"]) -> tuple[Any, _Made]:
    if isinstance(options, str):
        raise OptionError(
            f"expected a list of options, got one text {options!r}. Write [{options!r}] for a single option.", "options"
        )
    return name, partial(generate.choice, options=list(options), force=force, end=end)


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
    "json": (_json, (*names_of(fsm.json_schema)[1:], "max_retries"), 'json("name", schema)'),
    "grammar": (_grammar, tuple(names_of(fsm.grammar)[2:]), 'grammar("name", text)'),
}
"""The functions by which a template generates, the names of their `**options`, and an example of each."""


def _with_sampler(generator: Generator, sampler: Any) -> Generator:
    """Return the generator with another sampler, if one is given; raise for a sampler of several texts."""
    chosen = generator.sampler if sampler is None else generate.text(generator.model, sampler=sampler).sampler
    if chosen.num_samples not in (None, 1) and not isinstance(chosen, BeamSearch | BestOf):
        raise OptionError(
            f"expected a sampler of one text, got {chosen!r}. A template needs one: `best_of({chosen.num_samples})` takes the best.",
            "sampler",
        )
    return generator if chosen is generator.sampler else replace(generator, sampler=chosen)
