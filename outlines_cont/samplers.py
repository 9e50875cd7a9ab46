"""Samplers as frozen values, and functions that make them from checked options: greedy (penalties, argmax) and multinomial (penalties,
logits warpers, inverse transform sampling) choose token by token, by `SamplerBatch`; of the n texts of best of n the call keeps the best;
beams are ranked by `engine.beam`. They have no state: `sample` is given random numbers and token counts.

Each draw at random takes one float64 random number, so the draw of a row does not depend on other rows. The order of the steps is
`sampling.STEPS`; with `multinomial(warpers=...)` it is the order given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import Parameter
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, cast

import torch

from outlines_cont.checks import MAX_SAMPLES, check, check_int, is_number, knows_its_options
from outlines_cont.errors import OptionError
from outlines_cont.near_names import module_attributes
from outlines_cont.sampling.batch import TokenSampler, chain_of, params_of
from outlines_cont.sampling.kernels import TokenCounts
from outlines_cont.sampling.params import NO_PENALTIES, Penalties, Sampler, SamplingParams, no_temperature
from outlines_cont.sampling.stateful import DRY, XTC, Mirostat
from outlines_cont.sampling.truncation import MinP, Temperature, TopA, TopK, TopP, TypicalP
from outlines_cont.sampling.warper import Warper

# In the order of `STEPS`.
_STANDARD: dict[str, type[Warper]] = {
    "dry": DRY,
    "temperature": Temperature,
    "top_k": TopK,
    "top_p": TopP,
    "min_p": MinP,
    "typical_p": TypicalP,
    "top_a": TopA,
    "mirostat": Mirostat,
    "xtc": XTC,
}
# These are given by their number, the others as warpers.
_NUMBERED = (Temperature, TopK, TopP, MinP, TypicalP, TopA)
_NO_TEMPERATURE = Temperature(1)


def _warpers_of(options: Mapping[str, Any]) -> tuple[Warper, ...]:
    """Return the warpers for options by name, in the order of `STEPS`; None adds none, a number out of its range raises `OptionError`."""
    made: list[Warper] = []
    for option, kind in _STANDARD.items():
        value = options.get(option)
        if value is not None:
            warper = kind(value) if kind in _NUMBERED else value
            check(option, value, type(warper) is kind, f"`samplers.{kind.__name__}(...)` or None")
            made.append(warper)
    return tuple(warper for warper in made if warper != _NO_TEMPERATURE)


__all__ = [
    "DRY",
    "XTC",
    "BeamSearch",
    "BestOf",
    "Conditional",
    "Greedy",
    "MinP",
    "Mirostat",
    "Multinomial",
    "Sampler",
    "Temperature",
    "TopA",
    "TopK",
    "TopP",
    "TypicalP",
    "Warper",
    "beam_search",
    "best_of",
    "conditional",
    "greedy",
    "multinomial",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers would take it as a promise that all names exist
    __getattr__ = module_attributes(__name__, __all__)


P = ParamSpec("P")


class _TokenSampler(TokenSampler):
    """What the samplers of this module have in common."""

    __slots__ = ()
    _maker: ClassVar[str]  # the name of the function that makes it

    def with_temperature(self, temperature: float) -> Sampler:
        """Return a copy of this sampler with another temperature: 0 takes the most probable token.

        Raises:
            OptionError: the class overrides `sample`, so its temperature is unknown.
        """
        if params_of(self) is None:
            raise no_temperature(self, temperature)
        penalties, warpers = self.params.penalties, self.params.warpers
        if temperature == 0:
            return Greedy(penalties=penalties)
        return Multinomial(warpers=_with_temperature(warpers, Temperature(temperature)), penalties=penalties)

    def __str__(self) -> str:
        """The steps in their order, such as `mask > temperature 0.7 > top_k 50 > draw`."""
        params = self.params
        penalties = (
            f"{step} of {len(params.penalties.logit_bias)}" if step == "logit_bias" else f"{step} {value}"
            for step, value in params.penalty_options()
        )
        last = "take the largest" if params.is_greedy else "draw"
        return " > ".join(["mask", *penalties, *map(str, params.warpers), last])

    @property
    def options(self) -> Mapping[str, object]:
        """The options that it was made with and that change something, by name, in the order of the steps."""
        standard: dict[str, Any] = {
            warper.name: getattr(warper, fields(warper)[0].name) if type(warper) in _NUMBERED else warper  # type: ignore[arg-type]
            for warper in self.params.warpers
            if warper.is_standard
        }
        is_standard = _warpers_of(standard) == self.params.warpers
        return {
            **dict(self.params.penalty_options()),
            **(standard if is_standard else {"warpers": self.params.warpers}),
        }

    def __repr__(self) -> str:
        """The call that makes it, with the options in the order of their steps."""
        is_default = self.num_samples is None or (self.num_samples == 1 and self._maker == "multinomial")
        first = [] if is_default else [repr(self.num_samples)]
        options = [f"{option}={value!r}" for option, value in self.options.items()]
        return f"{self._maker}({', '.join(first + options)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Greedy(_TokenSampler):
    """Takes the most probable token; of equally probable ones that with the smallest id.

    Attributes:
        penalties: logit bias and penalties, applied before.
    """

    _maker: ClassVar[str] = "greedy"
    penalties: Penalties = NO_PENALTIES

    @property
    def num_samples(self) -> int | None:
        """None: the samples of the state, or one for a prompt."""
        return None

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters."""
        return SamplingParams(is_greedy=True, penalties=self.penalties)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Multinomial(_TokenSampler):
    """Draws from the distribution after the mask, the penalties, and the warpers in their order.

    Attributes:
        samples: S, the samples per prompt.
        warpers: the logits warpers; the options of `multinomial` make the standard ones.
        penalties: logit bias and penalties, applied before the warpers.

    Of tokens with equal probability the standard warpers keep all or none, so the result does not depend on the order of the
    vocabulary.
    """

    _maker: ClassVar[str] = "multinomial"
    samples: int = 1
    warpers: tuple[Warper, ...] = ()
    penalties: Penalties = NO_PENALTIES

    def __post_init__(self) -> None:
        check_int("n", self.samples, 1, MAX_SAMPLES)
        num_xtc = sum(isinstance(warper, XTC) for warper in self.warpers)
        check("warpers", self.warpers, num_xtc <= 1, "at most one `XTC` among the warpers")

    @property
    def num_samples(self) -> int | None:
        """S, the samples per prompt."""
        return self.samples

    @property
    def params(self) -> SamplingParams:
        """The sampling parameters."""
        return SamplingParams(is_greedy=False, penalties=self.penalties, warpers=self.warpers)

    def filtered(self, logits: torch.Tensor, counts: Sequence[TokenCounts | None] | None = None) -> torch.Tensor:
        """Return (R, V) logits after the warpers, without the penalties.

        They are minus infinity where a token is excluded, and may be shifted, by one number for each row. `counts` are the token
        counts of each row, for `DRY` and `Mirostat`.

        Cost: some passes over whole rows; `sample` needs fewer.
        """
        return chain_of(self.warpers, len(logits)).kept(logits, counts)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BestOf(Multinomial):
    """Draws `samples` texts per prompt, of which the one with the largest score is kept."""

    _maker: ClassVar[str] = "best_of"

    @property
    def num_kept(self) -> int:
        """How many of the texts are kept."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Conditional(BestOf):
    """Draws `samples` texts per prompt, of which `kept` are drawn by importance weights; see `conditional`."""

    _maker: ClassVar[str] = "conditional"
    kept: int = 1

    def __post_init__(self) -> None:
        check_int("n", self.kept, 1, MAX_SAMPLES)
        check_int("particles", self.samples, self.kept, MAX_SAMPLES)

    @property
    def num_kept(self) -> int:
        """How many of the texts are kept."""
        return self.kept

    def __repr__(self) -> str:
        """The call that makes it."""
        options = [f", {option}={value!r}" for option, value in self.options.items()]
        return f"conditional({self.kept}, particles={self.samples}{''.join(options)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """Beam search: keeps the `beams` most probable hypotheses; see `beam_search`.

    Attributes:
        beams: how many are kept.
        length_penalty: a score is divided by the number of generated tokens to this power.
        keep: the most hypotheses of a result; None for all.
    """

    beams: int
    length_penalty: float = 0.0
    keep: int | None = None

    def __post_init__(self) -> None:
        check_int("beams", self.beams, 1, MAX_SAMPLES)
        penalty = self.length_penalty
        check("length_penalty", penalty, is_number(penalty) and abs(penalty) <= 10, "a number from -10 to 10")
        check_int("keep", self.keep, 1, self.beams, is_optional=True)

    @property
    def num_samples(self) -> int | None:
        """None: the samples of a state are the hypotheses to start from, a prompt is one hypothesis."""
        return None


def gives_one_text(sampler: Sampler | BeamSearch) -> bool:
    """Return whether a call with a sampler has one text for a prompt, as that of a search has."""
    if isinstance(sampler, BestOf):
        return sampler.num_kept == 1
    return isinstance(sampler, BeamSearch) or (sampler.num_samples or 1) == 1


def _with_temperature(warpers: tuple[Warper, ...], temperature: Temperature) -> tuple[Warper, ...]:
    """Return the warpers with another temperature: in place of the first `Temperature`, or else before all but `DRY`."""
    first = next((i for i, warper in enumerate(warpers) if not isinstance(warper, DRY)), len(warpers))
    at = next((i for i, warper in enumerate(warpers) if isinstance(warper, Temperature)), first)
    others = [
        [warper for warper in part if not isinstance(warper, Temperature)] for part in (warpers[:at], warpers[at:])
    ]
    return (*others[0], *([] if temperature.is_neutral else [temperature]), *others[1])


@knows_its_options()
def greedy(
    *,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> Greedy:
    """Take the most probable token at every step; the result has as many samples as the given state.

    The options are those of `multinomial`.

    Raises:
        OptionError: an option is out of its range.
    """
    return Greedy(penalties=Penalties.of(logit_bias, repetition_penalty, frequency_penalty, presence_penalty))


@knows_its_options()
def multinomial(
    n: int = 1,
    *,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    top_a: float | None = None,
    dry: DRY | None = None,
    mirostat: Mirostat | None = None,
    xtc: XTC | None = None,
    temperature: float = 1.0,
    warpers: Sequence[Warper] | None = None,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float = 1.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
) -> Multinomial:
    """Draw tokens at random, `n` samples per prompt.

    The options apply in the order of `sampling.STEPS`, whatever the order of the arguments; `str(sampler)` shows it.

    Args:
        n: S, the samples per prompt, or after a state of one sample, at most 100,000; with 1 each sample of a state is continued once.
        top_k: keep the k most probable tokens.
        top_p: then keep the fewest most probable tokens whose probabilities sum to at least this share (nucleus sampling).
        min_p: then keep tokens with at least this share of the largest probability.
        typical_p: then keep the fewest tokens with surprisal nearest to the entropy that together have this share (typical sampling).
        top_a: then keep tokens with at least this share of the square of the largest probability.
        dry: before the temperature: lower the logits of tokens that would continue a repetition, such as `DRY(allowed_length=3)`.
        mirostat: then keep tokens up to a surprisal that follows a target, such as `Mirostat(tau=5.0)`.
        xtc: then, at random, exclude all likely tokens but one, such as `XTC(threshold=0.1, probability=0.5)`.
        temperature: the number that the logits are divided by, before any token is excluded.
        warpers: instead of all these: warpers in your own order, such as `(TopK(50), Temperature(0.7))`.
        logit_bias: numbers to add to the logits of tokens, by token id.
        repetition_penalty: divide positive logits of tokens that occur in the row, prompt included, by this number, and multiply
            negative ones by it; above 1 repeats less.
        frequency_penalty: subtract this from the logit of a token once for every time that it was generated.
        presence_penalty: subtract this once from the logits of tokens that were generated.

    Raises:
        OptionError: an option is out of its range.
    """
    penalties = Penalties.of(logit_bias, repetition_penalty, frequency_penalty, presence_penalty)
    numbers = {"top_k": top_k, "top_p": top_p, "min_p": min_p, "typical_p": typical_p, "top_a": top_a}
    standard = _warpers_of({"temperature": temperature, **numbers, "dry": dry, "mirostat": mirostat, "xtc": xtc})
    own = standard if warpers is None else _checked_warpers(warpers, standard)
    return Multinomial(samples=n, warpers=own, penalties=penalties)


def _with_options_of(maker: Callable[P, Multinomial]) -> Callable[[Callable[..., BestOf]], Callable[P, BestOf]]:
    """Return a decorator that gives a function of `n` the signature of another one, and rejects other options."""

    def decorate(function: Callable[..., BestOf]) -> Callable[P, BestOf]:
        known = knows_its_options(also_of=maker)(function)
        own, shared = inspect.signature(function), inspect.signature(maker).parameters.values()
        options = [option for option in shared if option.kind is Parameter.KEYWORD_ONLY]
        known.__signature__ = own.replace(parameters=[own.parameters["n"], *options])  # type: ignore[attr-defined]
        return cast(Callable[P, BestOf], known)

    return decorate


@_with_options_of(multinomial)
def best_of(n: int, **options: Any) -> BestOf:
    """Draw `n` texts after every row and keep the one with the largest score (the log-probability of the whole chain).

    A constrained text that was cut, or a row that failed, is kept only if there is no other.
    The prompt is fed once, and a state keeps its number of samples. The options are those of `multinomial`.

    Raises:
        OptionError: an option is out of its range.
    """
    drawn = multinomial(**options)
    return BestOf(samples=n, warpers=drawn.warpers, penalties=drawn.penalties)


@knows_its_options()
def conditional(n: int = 1, *, particles: int | None = None, temperature: float = 1.0) -> Conditional:
    """Draw `n` texts per prompt from the model's own distribution, given that it writes a text of the language.

    A mask renormalises at each token, whatever follows, so what it draws has another distribution. Here `particles` texts are drawn under
    the mask, each with the weight p / q, p being the probability of the model and q that of the draw (`state.importance`), and `n` of these
    by their weights (sampling importance resampling). A text may be there several times. The distribution is that of the model in the limit
    of many particles; a `SampleSizeWarning` says that few of them have most of the weight. A text that was cut has the weight 0.

    They serve to estimate what the model believes, and are not better answers: for records take `greedy()`, for a choice its exact law.
    A state of S samples becomes one of S n samples.

    Args:
        n: the samples per prompt, at most 100,000.
        particles: how many texts are drawn for each prompt, at least `n`; 64 or 8 n, the larger of them, by default.
        temperature: that at which the texts are drawn; the weights make up for it. Above 1 rare texts are found more often.

    Raises:
        OptionError: an option is out of its range.

    Cost: that of as many rows as there are particles; they share the prompt.
    """
    check_int("n", n, 1, MAX_SAMPLES)
    drawn = multinomial(temperature=temperature)
    count = min(max(64, 8 * n), MAX_SAMPLES) if particles is None else particles
    return Conditional(samples=count, kept=n, warpers=drawn.warpers)


@knows_its_options()
def beam_search(beams: int, *, length_penalty: float = 0.0, keep: int | None = None) -> BeamSearch:
    """Search for the most probable texts, `beams` hypotheses at a time, across all pieces of a chain.

    A hypothesis is ranked by its score (`state.scores`): the sum of the model's log-probabilities of all that generators have written
    in the row since the search began, forced text and sampled ends included. The initial score is the weight of the row at that time.
    Text that is added between two pieces, by `+` or `append`, does not change it. At every step the best `beams` of all ended
    hypotheses and all continuations are kept. The samples of a state are the hypotheses that the next generator starts from, so a
    search continues from one generator to the next. The result has as many samples as hypotheses were kept, the best
    first; `best` and `sort` rank by the score, too.

    Hypotheses are compared at the same step, whatever their lengths: forced text counts as soon as it is appended. Of hypotheses with
    the same text, in different tokens, only the most probable is kept, with its own probability. So there may be fewer hypotheses
    than beams. A constrained text that was cut ranks behind those that conform; a hypothesis that fails is dropped, unless its batch
    entry has no other. No random numbers are drawn.

    Args:
        beams: the number of hypotheses that are kept, at most 100,000.
        length_penalty: before scores are compared, divide them by the number of generated tokens to this power;
            0 compares plain sums, 1 means per token, more prefers longer texts.
        keep: the most hypotheses of a result, at most `beams`; None for all. With 1 a call has one text for a prompt, as that of another
            sampler, and a chain continues with the best.

    Raises:
        OptionError: an option is out of its range.
    """
    return BeamSearch(beams=beams, length_penalty=length_penalty, keep=keep)


def _checked_warpers(warpers: Sequence[Warper], standard: Sequence[Warper]) -> tuple[Warper, ...]:
    """Return the argument `warpers`; raise `OptionError` if it is invalid, or if options for `standard` warpers were given, too."""
    if standard:
        raise OptionError(
            f"expected either `warpers` or `{standard[0].name}`, got both. Add `{standard[0]!r}` to the warpers, where it is to apply.",
            "warpers",
        )
    is_list = isinstance(warpers, Sequence) and not isinstance(warpers, str | bytes)
    check("warpers", warpers, is_list, "a tuple of warpers", "Write `(TopK(50),)`.")
    for warper in warpers:
        advice = "Derive your own from `samplers.Warper`."
        if isinstance(warper, type) and issubclass(warper, Warper):
            advice = f"Make one, such as `{warper.__name__}(...)`."
        check("warpers", warper, isinstance(warper, Warper), "warpers, such as `TopK(50)`,", advice)
        try:
            hash(warper)
        except TypeError as error:
            raise OptionError(
                f"expected hashable warpers, since a sampler is a value, got {warper!r}: {error}. Make its class a "
                "`dataclass(frozen=True)` with hashable fields.",
                "warpers",
            ) from None
    return tuple(warpers)
