"""Generators for constrained decoding: `regex`, `choice`, `json`, `format`, `cfg` and `fsm` compile a constraint to a token FSM and return
a `Generator`; `text` has no constraint. What no automaton can express (keywords of JSON Schema, checks of an expression) is checked when a
value ends; one that fails is sampled again (rejection sampling or backtracking, at most `max_retries`). `made_once` caches generators.

A generator is a frozen value, pickled as the call that made it. Called with a prompt, a state, or a list of either, it returns values;
wrapped in `continuous` it returns a state.
"""

from __future__ import annotations

import builtins
import json as json_module
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Unpack, cast, get_args, get_type_hints

from pydantic import TypeAdapter

import fsm as fsm_package
from fsm import Expression
from fsm.automaton.captures import Captures
from fsm.expression import lift
from fsm.schema.model import arguments_of
from outlines_cont.checks import (
    DEFAULT_MAX_TOKENS,
    MAX_SAMPLES,
    check,
    check_int,
    check_model,
    check_one_of,
    checked_bool,
    is_int,
    is_model,
    knows_its_options,
    names_of,
)
from outlines_cont.drafts.opening import open_draft
from outlines_cont.errors import MissingEOS, NotPicklable, OptionError, shortened
from outlines_cont.events.event import StreamOptions
from outlines_cont.events.partial_type import PartialType
from outlines_cont.generation.alternatives import field_probabilities
from outlines_cont.generation.call import Call
from outlines_cont.generation.choices.json_values import FieldFinder
from outlines_cont.generation.exact_choice import MAX_OPTIONS, ExactChoice
from outlines_cont.generation.formats import format_of
from outlines_cont.generation.generator_options import (
    CFGOptions,
    CheckOptions,
    ConstraintOptions,
    GeneratorOptions,
    JSONOptions,
)
from outlines_cont.generation.infilling import Infilling, drawn_texts, fim_tokens, infill_by_scores, infill_by_tokens
from outlines_cont.generation.options import OPTIONS_ELSEWHERE, Options, PieceOptions, checked_policies
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.generation.probabilities import MAX_PREFIXES, Spellings, option_probabilities
from outlines_cont.generation.prompt import Prompt
from outlines_cont.generation.stream import StateStream
from outlines_cont.generation.thinking import Thinking
from outlines_cont.interfaces import LanguageModel
from outlines_cont.near_names import module_attributes
from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.constraint import (
    MAX_REJECTIONS,
    MAX_RETRIES,
    CheckedConstraint,
    Constraint,
    EndMode,
    KeptConstraints,
)
from outlines_cont.policies.policy import Policy
from outlines_cont.samplers import BeamSearch, Greedy, Multinomial, greedy, multinomial
from outlines_cont.sampling.params import Sampler
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.sequence_state import SequenceState

__all__ = ["Generator", "cfg", "choice", "format", "fsm", "infill", "json", "regex", "text"]

ENDS: dict[str, EndMode] = {
    "regex": "free",
    "cfg": "free",
    "fsm": "free",
    "format": "free",
    "json": "eos",
}
"""How the texts of each kind of generator end by default; see `regex`. Patterns and grammars may often go on where they may end."""

# What other libraries call these functions.
_OTHER_NAMES = {
    "grammar": "Write `generate.cfg(model, grammar)`.",
    "select": "Write `generate.choice(model, options)`.",
    "gen": "Write `generate.text(model)`, or `generate.regex(model, pattern)`.",
    "json_schema": "Write `generate.json(model, schema)`.",
    "continuous": "Write `from outlines_cont import continuous`.",
}
_making = threading.Lock()
_GENERATOR_BYTES = 2_000


ADDED = "a generator is not added to a state, but called with it. Instead of `state + generator` write `continuous(generator)(state)`."
"""What is said of `state + generator`, as other libraries write it."""


@dataclass(frozen=True, eq=False, repr=False)
class Generator(PieceMaker):
    """Generates one span of text after a prompt or a state. Make one with `generate.text`, `generate.json` and so on.

    Attributes:
        model: the language model.
        sampler: how tokens are drawn.
        constraint: the language of the text; None for free text.
        parse: the function from the text of a generated span to its value.
        source: the constraint as JSON, such as `{"regex": "[a-z]+"}`; it is saved with a state.
        partial_type: the type of the value, for partial values in a stream; None if the value has no type.
        steering: policies of every call, in addition to those given to the call.
        draft: the draft for speculative decoding in every call that does not set its own.
        unbounded: the values of a schema that may be of any length; see `fsm.Report`.
        thinking: how the model thinks before the text in every call that does not say otherwise; None if it does not.
        fields: of `generate.json` with `exact_fields`, what finds the fields that are chosen as wholes.
        shown_schema: a short text of the schema that conversations show to the model; empty without `show_schema`.
        made_by: the function of `generate` that made it, and its arguments; None if it was made otherwise.
    """

    _no_prompt: ClassVar[str] = (
        "A generator does not continue another, but the state that it returns: `continuous(second)(continuous(first)(prompt))`."
    )
    _advice: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("resume", "state", "append"),
            "A generator returns values. Write `continuous(generator)`, whose calls return states, and which has `resume`.",
        ),
        "continuous": "Write `continuous(generator)`.",
        **dict.fromkeys(
            ("generate", "run", "invoke", "batch", "complete"),
            "Call it: `generator(prompt)`, or `generator([prompt, ...])`.",
        ),
        **dict.fromkeys(("value", "text"), "Call it with a prompt: `generator(prompt)` is the value."),
    }

    # `dataclasses.replace` does not copy it: a changed generator is no longer the result of that call.
    made_by: tuple[str, tuple[Any, ...], dict[str, Any]] | None = field(init=False, default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """About how many bytes it takes besides the model: those of its constraint, which are more with each use, and of its source."""
        constraint = getattr(self.constraint, "constraint", self.constraint)  # without its checks
        return _GENERATOR_BYTES + 2 * len(self.source) + getattr(constraint, "nbytes", 0)

    def __str__(self) -> str:
        """The call that makes it, without its other options: `generate.regex(<HuggingFaceModel ...>, '[a-z]+', sampler=greedy())`."""
        ((kind, value),) = json_module.loads(self.source).items()
        given = value[0] if kind in ("json", "cfg") else value
        is_name = isinstance(given, str) and kind in (
            "json",
            "format",
            "fsm",
        )  # of a class, or the `repr` of an expression
        shown = "" if given is None else f", {shortened(given if is_name else repr(given), 120)}"
        return f"generate.{kind}({self.model!r}{shown}, sampler={self.sampler!r})"

    __repr__ = __str__

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the call that made the generator, with its model and sampler; unpickling repeats the call.

        Raises:
            NotPicklable: no function of `generate` made it.
        """
        if self.made_by is None:
            raise NotPicklable(
                "expected a generator as a function of `generate` returned it, got one that was made or changed by hand. "
                "Make it in each process separately."
            )
        return _unpickled, self.made_by

    def __call__(self, prompt: Prompt, *, rng: Rng = None, **options: Unpack[PieceOptions]) -> Any:
        """Generate one span per row and return the values.

        Args:
            prompt: a text, `Tokens`, a list of token ids, the messages of a conversation, a state, or a list of them.
            rng: for a sampler that draws: a seed, a generator of PyTorch, NumPy or Python to draw the seed from, or a list with a
                seed per prompt. None continues the streams of a state, and takes a seed from the operating system for a prompt.
            **options: `max_tokens`, `stop_at` and the others of `PieceOptions`.

        Returns:
            `[batch][sample]` lists of values; a dimension of size 1 is left out.

        Raises:
            OptionError, PromptTypeError, EmptyPrompt, ContextLengthError, SampleMismatch: before anything runs.
            IncompleteOutput: after all rows have ended: a constrained text was cut. It has the attributes `results` and `errors`,
                as any other error of a single row has. If there are several rows, the message begins with the index of the
                first that has failed.
        """
        call = self._call(prompt, options, rng)
        return self.value_of(call.finished_state(), call.options.max_tokens)

    async def acall(self, prompt: Prompt, *, rng: Rng = None, **options: Unpack[PieceOptions]) -> Any:
        """The asynchronous form: it does not block the event loop, and a cancelled task releases its rows. Tasks share the engine."""
        call = self._call(prompt, options, rng)
        return self.value_of(await call.async_finished_state(), call.options.max_tokens)

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
        """Generate as a call does, and yield the text as it is written.

        Args:
            prompt: as for a call.
            events: yield a `StreamEvent` for each row that has changed, with its new tokens and its finish reason.
            top: in events, for each drawn token this number of the most probable ones, with their log-probabilities.
            retract: in events, report text immediately, though a stop text or a policy may still remove it; a later event then
                contains how much was removed.
            partial: for a generator of JSON, yield the partial value instead, whenever it has changed; with `events`, add it to them.
            rng: as for a call.
            **options: as for a call.

        Yields:
            Without `events` new text, which is never empty. It is a `str` for one row, and for more rows lists of `str` in the shape of the
            values, with empty texts for rows without new text. Characters are complete, and no text is removed. Joined, they are the
            whole text.

            With `partial` values in that shape, None for rows without a value yet. An object of a pydantic model lacks the fields that
            are not written yet (those with defaults, too; see `model_fields_set`); texts grow, and a complete member was validated and
            does not change. A member that fails validation is left out. The last value is that which a call returns.

        Raises:
            OutlinesContError: as a call does: errors of arguments immediately, the others after the last text. A text that ends at
                `stop_at` is complete for a stream, also if it is only the beginning of a constrained one.
        """
        return iter(self._streamed(prompt, StreamOptions(events, top, retract, partial), options, rng))

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
        return aiter(self._streamed(prompt, StreamOptions(events, top, retract, partial), options, rng))

    def probabilities(
        self,
        prompt: Prompt,
        *,
        against: Any = None,
        spellings: Spellings = "canonical",
        end: bool = False,
        max_prefixes: int = MAX_PREFIXES,
    ) -> Any:
        """Return the exact probability of every option of `generate.choice` after a prompt; nothing is drawn.

        It is that with which `generate.choice` draws the option with `samplers.multinomial()`, whatever
        the sampler of this generator. `Probabilities.shares` are the model's own: the product of the conditional probabilities of the
        option's tokens, without the constraint.

        Args:
            prompt: as for a call.
            against: prompts without content, or `"batch"`: the probabilities are divided by those after them; see docs/choices.md.
            spellings: which tokens count in the shares: those by which the tokenizer continues the prompt, or `"all"` sequences of
                tokens that spell the option, summed.
            end: whether the shares include the probability that the model ends its text after the option.
            max_prefixes: the most prefixes of spellings, for each row, that may be fed.

        Returns:
            `[batch][sample]` lists of `Probabilities`; a dimension of size 1 is left out.

        Raises:
            OptionError: this is no generator of a choice, or has policies; an option is empty or given twice; more than
                `max_prefixes` are needed.
            ContextLengthError, EmptyPrompt, PromptTypeError, ModelMismatch: a prompt cannot run.
            DeadEnd, InvalidLogits: the logits of the model define no probabilities.

        Cost: two forwards of all rows together (see `spelling_tree.score`). The probabilities under a mask, of a generator with
        `exact=False`, and `spellings="all"` take at most one for each token of the longest spelling, up to 256 logits together. The
        prompt is fed once.
        """
        options = json_module.loads(self.source).get("choice")
        if options is None:
            raise OptionError(
                f"expected a generator of `generate.choice` for the probabilities of its options, got {self}. "
                "Write `generate.choice(model, [...]).probabilities(prompt)`.",
                "generator",
            )
        return option_probabilities(
            self, options, prompt, spellings=spellings, end=end, max_prefixes=max_prefixes, against=against
        )

    def alternatives(
        self,
        state: SequenceState,
        path: str,
        *,
        against: Any = None,
        spellings: Spellings = "canonical",
        max_prefixes: int = MAX_PREFIXES,
    ) -> Any:
        """Return the exact probability of every value that a field of JSON might have; see `SequenceState.alternatives`."""
        return field_probabilities(self, state, path, spellings=spellings, max_prefixes=max_prefixes, against=against)

    if not TYPE_CHECKING:  # type checkers find the mistake by themselves

        def __radd__(self, state: object) -> object:
            """Raise `TypeError`: a state is continued by a call."""
            raise TypeError(ADDED)

    def _call(self, prompt: Any, options: PieceOptions, rng: Rng) -> Call:
        # A plain call returns no log-probabilities, so those of forced tokens at the very end need no forward.
        return Call(self, prompt, Options.of(options), rng=rng, score_last=False)

    def _streamed(self, prompt: Prompt, shown: StreamOptions, options: PieceOptions, rng: Rng) -> StateStream:
        return StateStream(Call(self, prompt, Options.of(options), rng=rng), shown, self.check_stream)


def _check(model: LanguageModel, sampler: object) -> None:
    """Raise `OptionError` for an invalid model or sampler; when the generator is made, not when it first runs."""
    check_model(model)
    is_sampler = hasattr(sampler, "num_samples") and not isinstance(sampler, type)
    check("sampler", sampler, sampler is None or is_sampler, "a sampler", _sampler_advice(sampler))
    if isinstance(sampler, Greedy | Multinomial):
        sampler.penalties.check_vocabulary(model.vocab_size)


def _sampler_advice(given: object) -> str:
    """Return what to write in place of a function that was not called, or of the name of one."""
    name = given if isinstance(given, str) else getattr(given, "__name__", None)
    calls = {
        "greedy": "greedy()",
        "multinomial": "multinomial()",
        "best_of": "best_of(n)",
        "conditional": "conditional(n)",
        "beam_search": "beam_search(n)",
    }
    call = calls.get(str(name).lower())
    return f"Write `samplers.{call}`." if call else "Make one, such as `samplers.greedy()` or `samplers.multinomial()`."


def _generator(
    model: LanguageModel,
    kind: str,
    given: Any,
    expression: Expression | None,
    parse: Callable[[str], Any] = str,
    *,
    sampler: Sampler | BeamSearch | None = None,
    policies: Sequence[Policy[Any]] = (),
    draft: Any = None,
    thinking: Thinking | bool | None = None,
    force: bool = True,
    end: EndMode | None = None,
    max_retries: int = MAX_RETRIES,
    max_rejections: int | None = None,
) -> Generator:
    """Return the generator of a text of an expression, or of free text; `given` is what its constraint was made from."""
    source = _source(kind, given)
    _check(model, sampler)
    constraint = None
    if expression is not None:
        end = ENDS[kind] if end is None else end
        constraint = _constraint(model, expression, force, end, max_retries, max_rejections)
    open_draft(draft, model)  # raises for an invalid argument now, not at the first call
    return Generator(
        model,
        sampler or greedy(),
        constraint,
        parse,
        source,
        steering=checked_policies(() if policies is None else policies),
        draft=draft,
        unbounded=() if expression is None else expression.report.unbounded,
        thinking=Thinking.of(thinking),
    )


def _constraint(
    model: LanguageModel,
    expression: Expression,
    force: bool,
    end: EndMode,
    max_retries: int,
    max_rejections: int | None,
) -> Constraint | CheckedConstraint:
    checked_bool(force, "force")
    check_one_of("end", end, ("eos", "free"))
    expected = "a number of retries, 0 or more,"
    check("max_retries", max_retries, is_int(max_retries, 0), expected, f"The default is {MAX_RETRIES}.")
    rejections = min(MAX_REJECTIONS, max_retries) if max_rejections is None else max_rejections
    expected = f"a number of retries, from 0 to `max_retries`, {max_retries},"
    check("max_rejections", max_rejections, is_int(rejections, 0, max_retries), expected, "Raise `max_retries`, too.")
    if not model.eos_token_ids:
        raise MissingEOS(
            "expected a model with an end-of-sequence token, which ends a constrained text, got one without. "
            "Set `eos_token_id` in the generation config or the tokenizer before wrapping it."
        )
    plain = Constraint.of_model(model, expression, force=force, end=end)
    if not expression.has_checks:
        return plain
    return CheckedConstraint(plain, expression, TokenSet.of(model.eos_token_ids), max_retries, rejections)


def _source(kind: str, value: Any) -> str:
    """Return the arguments of a generator as JSON; classes as their name, values that JSON cannot hold as their `repr`."""

    def shown(item: Any) -> str:
        return f"{item.__module__}.{item.__qualname__}" if isinstance(item, builtins.type) else repr(item)

    try:
        return json_module.dumps({kind: value}, default=shown, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise fsm_package.SchemaError(
            "expected a schema that can be written down, got one that contains itself, or is nested too deeply. "
            "Write recursion as a reference, such as {'$ref': '#'}"
        ) from error


P = ParamSpec("P")


def _generator_function(function: Callable[P, Generator]) -> Callable[P, Generator]:
    """Make a function list its `**options` in its signature, refuse others, and return generators that can be pickled."""
    name = function.__name__
    function.__signature__ = _listed(function)  # type: ignore[attr-defined]
    maker = knows_its_options(elsewhere=OPTIONS_ELSEWHERE)(function)

    @wraps(maker)
    def make(*args: P.args, **options: P.kwargs) -> Generator:
        if args and not is_model(args[0]) and any(map(is_model, args)):
            raise OptionError(
                f"expected a model as the first argument of `{name}`, got {shortened(repr(args[0]))} before it. "
                f"Write `generate.{name}(model, ...)`.",
                "model",
            )
        generator = maker(*args, **options)
        kept = tuple(map(_copied, args)), {name: _copied(option) for name, option in options.items()}
        object.__setattr__(generator, "made_by", (name, *kept))
        return generator

    return make


def _listed(function: Callable[..., Any]) -> Signature:
    """Return the signature of a function with each of its `**options`, and the default of each, for `help` and for messages."""
    own = signature(function)
    *given, options = own.parameters.values()
    (kind,) = get_args(get_type_hints(function)[options.name])
    defaults = {"end": ENDS.get(function.__name__), "show_schema": False, "exact_fields": False}
    takers = (fsm_package.grammar, fsm_package.json_schema, _generator)
    known = {name: one.default for taker in takers for name, one in signature(taker).parameters.items()} | defaults
    listed = [Parameter(name, Parameter.KEYWORD_ONLY, default=known[name]) for name in kind.__annotations__]
    return own.replace(parameters=[*given, *listed])


def _copied(argument: Any) -> Any:
    """Return a copy of an argument that is a dict or a list, since the caller may change a schema later."""
    return deepcopy(argument) if isinstance(argument, dict | list) else argument


def _unpickled(name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Generator:
    generator: Generator = globals()[name](*args, **options)
    return generator


@_generator_function
def text(model: LanguageModel, **options: Unpack[GeneratorOptions]) -> Generator:
    """Generate free text until the model ends it, or `stop_at` or `max_tokens` cuts it. The value is the text, cut or not.

    Args:
        model: the language model.
        **options: those of `GeneratorOptions`: `sampler`, `policies`, `draft` and `thinking`.
    """
    return _generator(model, "text", None, None, **options)


@_generator_function
def regex(model: LanguageModel, pattern: str, **options: Unpack[ConstraintOptions]) -> Generator:
    """Generate text that fully matches `pattern`, a regular expression in Python's syntax. The value is the text.

    Args:
        model: the language model.
        pattern: the regular expression.
        **options: `force` and `end` (see `ConstraintOptions`), and those of `text`.

    Raises:
        fsm.RegexSyntaxError, fsm.UnsupportedRegex: the pattern is malformed, or cannot be a constraint.
        fsm.EmptyLanguage, fsm.VocabularyGap: no text matches, or none that the tokens of the model can spell.
    """
    return _generator(model, "regex", pattern, fsm_package.regex(pattern), **options)


@_generator_function
def choice(
    model: LanguageModel,
    options: Sequence[str],
    *,
    exact: bool | None = None,
    **others: Unpack[ConstraintOptions],
) -> Generator:
    """Generate one of the texts `options`. The value is that text.

    Args:
        model: the language model.
        options: the texts to choose from.
        exact: choose a whole text by the model's own probabilities, conditioned on the texts, which are scored together in at most two
            forwards, instead of drawing it token by token under a mask; see docs/choices.md. The default is to do so for up to 128 texts
            (of more than 32, only if they feed no more tokens than the row has), where no other option changes single tokens; with True
            it raises `OptionError` instead.
        **others: `end`: whether the model's end of text is a part of an option (`"eos"`), or it may go on (`"free"`), which is the
            default; where tokens are drawn and no option begins another the default is `"eos"`, by which no token reaches beyond an
            option. `force` (see `ConstraintOptions`), and those of `text`.

    Raises:
        fsm.ExpressionError: there are no options, or one is not a string.
        OptionError: `exact` is True, and the generator has options that change single tokens, or an option is empty.
    """
    expression = fsm_package.choice(options)
    check("exact", exact, exact is None or isinstance(exact, bool), "True, False or None")
    end = others.get("end")
    check_one_of("end", end, ("eos", "free", None))
    if exact and "" in options:
        raise OptionError(
            "expected options without an empty one for `exact=True`, as every text begins with it, got ''. Name the case, such as 'none'.",
            "options",
        )
    texts = ExactChoice(tuple(dict.fromkeys(options)), end or "free", exact)
    others["end"] = end or ("free" if texts.has_nested else "eos")
    made = replace(_generator(model, "choice", list(options), expression, **others), exact=texts)
    made.chooses_exactly(Options.of({}))  # raises now, not at the first call
    return made


@knows_its_options()
def infill(
    model: LanguageModel,
    before: str,
    after: str,
    language: Sequence[str] | str | Expression,
    *,
    samples: int = 32,
    temperature: float = 1.0,
    max_tokens: int | None = DEFAULT_MAX_TOKENS,
    use_fim: bool | None = None,
    rng: Rng = None,
) -> Infilling:
    """Fill the gap between two texts with a text of a language.

    A model with tokens for fill-in-the-middle is asked by these, and writes the text under a mask. For others texts are drawn after
    `before`, and each is scored together with `after`; of a list of at most 128 texts all are scored, and nothing is drawn.

    Args:
        model: the language model.
        before: the text before the gap; spaces at its borders belong to the texts around it, or to the language.
        after: the text after it.
        language: a list of texts, a regular expression, or an `Expression`.
        samples: how many texts are drawn, if they are not listed.
        temperature: that at which they are drawn; above 1 they differ more.
        max_tokens: the most tokens of the text.
        use_fim: ask by the tokens for fill-in-the-middle (True), or score (False); None asks if the tokenizer has such tokens.
        rng: a seed for the draws.

    Returns:
        The texts that were found, the most probable one first.

    Raises:
        OptionError: an option is out of its range, or `use_fim` is True and no such tokens are known.
        IncompleteOutput: all texts were cut.
        fsm.RegexSyntaxError, fsm.ExpressionError, fsm.EmptyLanguage: the language is malformed, or has no text.

    Cost: with the tokens, that of one text. Else of `samples` rows that share the text before the gap, and one forward that scores them.
    """
    check_model(model)
    for name, text in (("before", before), ("after", after)):
        check(name, text, isinstance(text, str), "a text")
    check_int("samples", samples, 1, MAX_SAMPLES)
    check("use_fim", use_fim, use_fim is None or isinstance(use_fim, bool), "True, False or None")
    tokens = None if use_fim is False else fim_tokens(model)
    if use_fim and tokens is None:
        raise OptionError(
            "expected a model with tokens for fill-in-the-middle, such as <fim_prefix>, as `use_fim=True` asks for, got one whose "
            "tokenizer has none that are known. Leave `use_fim` out: then texts are scored.",
            "use_fim",
        )
    listed = () if isinstance(language, str | Expression) else tuple(language)
    if isinstance(language, str):
        language = fsm_package.regex(language)
    expression = language if isinstance(language, Expression) else fsm_package.choice(listed)
    write = partial(_generator, model, "fsm", expression, expression)
    options = Options.of({"max_tokens": max_tokens})
    if tokens is not None:
        return infill_by_tokens(write(), tokens, before, after, options, rng)
    if 0 < len(listed) <= MAX_OPTIONS:
        return infill_by_scores(model, listed, before, after)
    texts = drawn_texts(write(sampler=multinomial(samples, temperature=temperature)), before, options, rng)
    return infill_by_scores(model, texts, before, after)


@_generator_function
def json(model: LanguageModel, schema: Any, **options: Unpack[JSONOptions]) -> Generator:
    """Generate JSON that validates against `schema`.

    Keywords that the automaton cannot express (`fsm.json_schema(...).report` lists them) are checked when a value ends. If a check
    fails, the row is rewound into the value, which is sampled again; `state.retries` counts how often.

    Args:
        model: the language model.
        schema: a JSON schema as a dict or as JSON text, a pydantic model, another type that pydantic supports, or a function.
        **options: `exact_fields` and `show_schema` (see `JSONOptions`), those of `fsm.json_schema`, such as `whitespace`, `formats`,
            `dialect` and `registry`, `max_retries` and `max_rejections` (see `CheckOptions`), and those of `regex`.

    For a tool write `generate.json(model, fsm.tool_schema(tool))`.

    The value has the given type: an object of a pydantic model, for a schema the result of `json.loads`, for a function
    a dict of its arguments.

    Raises:
        fsm.SchemaError: the schema is malformed, or is wrapped in another object, such as a tool.
        fsm.EmptyLanguage: no JSON satisfies the schema.
    """
    shows = checked_bool(options.pop("show_schema", False), "show_schema")
    is_exact = checked_bool(options.pop("exact_fields", False), "exact_fields")
    of_schema, others = _parted(options, fsm_package.json_schema)
    expression = fsm_package.json_schema(schema, **of_schema)
    parse, partial_type = _parser_of(schema)
    made = _generator(model, "json", [schema, of_schema], expression, parse, **others)
    fields = FieldFinder(cast("Constraint", made.constraint).token_fsm.automaton) if is_exact else None
    shown = fsm_package.schema_text(schema) if shows else ""
    return replace(made, partial_type=partial_type, shown_schema=shown, fields=fields)


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


@_generator_function
def format(model: LanguageModel, type: Any, **options: Unpack[ConstraintOptions]) -> Generator:
    """Generate one value of a Python type; the value has that type.

    Values that are listed (`bool`, an `Enum`, a `Literal`) are chosen as wholes, as those of `choice`.

    Args:
        model: the language model.
        type: `int`, `float`, `decimal.Decimal`, `bool`, `datetime.date`, `time` or `datetime`, `uuid.UUID`, an `Enum`, or a `Literal`.
        **options: those of `regex`.

    Raises:
        OptionError: any other type.
    """
    chosen = format_of(type)
    made = _generator(model, "format", type, chosen.expression, chosen.parse, **options)
    return (
        replace(made, exact=ExactChoice(chosen.texts, options.get("end") or ENDS["format"])) if chosen.texts else made
    )


@_generator_function
def cfg(model: LanguageModel, grammar: str, *, start: str = "start", **options: Unpack[CFGOptions]) -> Generator:
    """Generate a text of a context-free grammar in the language of Lark. The value is the text.

    Args:
        model: the language model.
        grammar: the rules and terminals, as Lark writes them; `fsm.gbnf` converts a grammar of llama.cpp.
        start: the rule that a text consists of.
        **options: those of `fsm.grammar`, such as `ignored` or `strict`, and those of `regex`.

    Raises:
        fsm.GrammarError: the grammar is malformed, or uses an unsupported feature; see `fsm.grammar`.
        fsm.EmptyLanguage, fsm.VocabularyGap: it has no text, or none that the tokens of the model can spell.
    """
    of_grammar, others = _parted(options, fsm_package.grammar)
    expression = fsm_package.grammar(grammar, start, **of_grammar)
    return _generator(model, "cfg", [grammar, start, of_grammar], expression, **others)


@_generator_function
def fsm(model: LanguageModel, expression: Expression | str, **options: Unpack[CheckOptions]) -> Generator:
    """Generate a text of an expression of the package `fsm`; a `str` is the language of exactly that text.

    The value is the text; if parts of the expression have names, it is a dict of their texts (`Expression.captures`). Special tokens
    (`fsm.special`) have no letters, so none are in a value; `state.generated` shows them by name.

    Checks of the expression are applied as in `json`, with the same retries.

    Args:
        model: the language model.
        expression: a value of `fsm`, such as `fsm.regex("[a-z]+") + "!"`, or a text.
        **options: `max_retries` and `max_rejections` (see `CheckOptions`), and those of `regex`.

    Raises:
        OptionError: `expression` is not an expression or a text.
        fsm.EmptyLanguage, fsm.VocabularyGap: it has no text, or none that the tokens of the model can spell.
    """
    if not isinstance(expression, Expression | str):
        raise OptionError(
            f"expected an expression, such as `fsm.regex(...)`, or a text, got {type(expression).__name__}",
            "expression",
        )
    language = lift(expression)
    parse = Captures(language.parts).find if language.parts else str
    made = _generator(model, "fsm", expression, language, parse, **options)
    return replace(made, parses_specials=True) if language.parts and language.specials else made


def _parted(options: Mapping[str, Any], function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a function, and the others."""
    names = names_of(function)
    own = {name: option for name, option in options.items() if name in names}
    return own, {name: option for name, option in options.items() if name not in names}


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers would take it as a promise that all names exist
    __getattr__ = module_attributes(__name__, __all__, _OTHER_NAMES)


_BY_OPTION: dict[str, tuple[Callable[..., Generator], str]] = {
    "regex": (regex, "pattern"),
    "choice": (choice, "options"),
    "json": (json, "schema"),
    "grammar": (cfg, "grammar"),
}


def maker_of(options: Mapping[str, Any], *, force: bool, end: EndMode | None = None) -> partial[Generator]:
    """Return the call for `made_once` of the one constraint in `options` (`regex`, `choice`, `json`, `grammar`), else of free text.

    `end` is how it ends; None for the default of its kind.
    """
    for name, (make, parameter) in _BY_OPTION.items():
        if options.get(name) is not None:
            return partial(make, **{parameter: options[name]}, force=force, **({} if end is None else {"end": end}))
    return partial(text)


def made_once(model: LanguageModel, make: partial[Generator]) -> Generator:
    """Return `make(model)`; equal calls, as in a loop or for many rows, return the same generator.

    The last of a model are kept, as many as take no more than its constraints may (`KeptConstraints`).

    `make` is a function of this module with all arguments by name, except for the model.
    """
    try:
        key = (make.func, _key_of(make.keywords))
        hash(key)
    except TypeError:  # an argument is not hashable
        return make(model)
    known: OrderedDict[object, Generator] = model.memo.setdefault("generators", OrderedDict())
    # Programs or rows of templates that start in several threads would all make the same generator.
    with _making:
        generator = known.pop(key, None)
        is_new = generator is None
        generator = generator or make(model)
        known[key] = generator
        if is_new:
            _drop_oldest(known, KeptConstraints.of(model).max_bytes)
    return generator


def _drop_oldest(known: OrderedDict[object, Generator], max_bytes: int) -> None:
    """Drop the least recently used generators of which all take too much; the last stays. Cost: 1 us for each of them."""
    total = sum(one.nbytes for one in known.values())
    while total > max_bytes and len(known) > 1:
        total -= known.popitem(last=False)[1].nbytes


def _key_of(arguments: dict[str, Any]) -> Any:
    """Return a hashable key of arguments; JSON by its text, which keeps the order of keys and distinguishes 1 from True."""
    return tuple(
        (name, json_module.dumps(dict(value) if isinstance(value, Mapping) else value))
        if isinstance(value, Mapping | list | tuple | str | int | float | None)
        else (name, builtins.type(value), value)
        for name, value in arguments.items()
    )
