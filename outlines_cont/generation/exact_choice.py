"""`ExactChoice`: one of some texts, chosen as a whole by the model's own law, conditioned on the texts.

A mask is myopic: token by token it renormalises over what some text allows, whatever follows, so texts whose first tokens are common are
drawn too often. Here all texts are scored before one is chosen. Of a text o, p(o) is the product of the probabilities of the tokens by
which the tokenizer continues the row with it, and e(o) the probability of the end that the texts allow: with `end="eos"` that the model
ends its text after o, with `end="free"` that it does not go on to a longer one of the texts (1 where none begins with o). Then

    P(o) = p(o) e(o) / sum of p(x) e(x) over all texts x

is the distribution of what the model writes, given that it writes one of them. At a temperature t it is that of (p e) ** (1 / t).

`choices.option_law` computes these probabilities after a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from outlines_cont.errors import OptionError
from outlines_cont.generation.choices.spelling_tree import Path, SpellingTree
from outlines_cont.generation.options import Options
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import encode_bytes_inside
from outlines_cont.policies.constraint import EndMode
from outlines_cont.samplers import Conditional, Greedy, Multinomial
from outlines_cont.sampling.params import NO_PENALTIES
from outlines_cont.sampling.truncation import Temperature
from outlines_cont.state.row import StateRow

MAX_OPTIONS = 128
"""The most texts that are chosen from in this way by default."""
MAX_CHARACTERS = 4_096
"""The most characters that they may have together by default."""
MAX_UNPRICED = 32
"""Of more options than these all may feed at most as many tokens as the row has, by default: then a choice takes about twice a draw."""


@dataclass(frozen=True, slots=True)
class ExactChoice:
    """Texts to choose from.

    Attributes:
        options: the texts, each once.
        end: how they end; see the top of this module.
        is_exact: whether one is chosen by the law of this module; None for where that is possible, and the texts are not too many.
    """

    options: tuple[str, ...]
    end: EndMode
    is_exact: bool | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the law of this module is to be used where nothing prevents it."""
        if self.is_exact is not None:
            return self.is_exact
        is_small = len(self.options) <= MAX_OPTIONS and sum(map(len, self.options)) <= MAX_CHARACTERS
        return is_small and "" not in self.options

    def is_affordable(self, tree: SpellingTree) -> bool:
        """Return whether the texts after a row may be scored: always if that was asked for, else if they are few, or short beside the row.

        A draw under a mask feeds the row and some tokens more, and scoring the row and those of `tree`: at most twice as many.
        """
        return self.is_exact is not None or len(self.options) <= MAX_UNPRICED or len(tree) <= len(tree.row.token_ids)

    @property
    def has_nested(self) -> bool:
        """Whether one of the texts begins another. Cost: a sort."""
        ordered = sorted(self.options)
        return any(after.startswith(before) for before, after in pairwise(ordered))

    def is_used(self, sampler: object, options: Options, *, has_policies: bool) -> bool:
        """Return whether a call chooses by the law of this module: where nothing acts on single tokens.

        Args:
            sampler: how it draws.
            options: those of the call.
            has_policies: whether the generator has some of its own.

        Raises:
            OptionError: something does, and `is_exact` is True.
        """
        if len(self.options) == 1:  # one text is written without a choice
            return False
        is_required = self.is_exact or options.against is not None
        if not self.is_wanted and not (is_required and self.is_exact is None):
            if options.against is not None:
                raise _refused("exact=False", "against=...", "It draws token by token.")
            return False
        # Other tokens that end a text are a part of the law only where the end is.
        names = [name for name in _TOKENWISE if name != "stop_token_ids" or self.end == "eos"]
        name = "policies" if has_policies else next((name for name in names if getattr(options, name)), None)
        if name is None and temperature_of(sampler) is None:
            name = "sampler"
        if name is not None and is_required:
            raise _refused(name, "exact=True" if self.is_exact else "against=...", _INSTEAD.get(name, _CHANGES))
        return name is None

    def tree(self, model: LanguageModel, row: StateRow, *, ends: bool = False) -> SpellingTree | None:
        """Return the spellings of the texts after a row; None where the tokenizer cannot spell one of them there.

        With `ends`, the ends of text after them are in the tree, too, also if they are no part of an option.
        """
        table = model.tokenizer.token_bytes
        spellings: list[Path] = []
        for option in self.options:
            data = option.encode()
            ids = tuple(encode_bytes_inside(model.tokenizer, data, row.token_ids))
            if not ids or b"".join(table[token_id] or b"" for token_id in ids) != data:
                return None
            spellings.append(ids)
        return SpellingTree(row, spellings, sorted(model.eos_token_ids) if ends or self.end == "eos" else ())


# The options of a call that change single tokens.
_TOKENWISE = ("policies", "stop_at", "min_tokens", "stop_token_ids", "heal", "is_guided")
_INSTEAD = {
    "sampler": "Use `samplers.greedy()`, or `samplers.multinomial(n, temperature=...)`: other options of samplers change single tokens.",
}
_CHANGES = "It changes single tokens, or decides about them."


def _refused(name: str, beside: str, advice: str) -> OptionError:
    shown = {"is_guided": "guidance"}.get(name, name)
    return OptionError(
        f"expected no such `{shown}` for a choice with `{beside}`, which is made of whole texts. {advice} Or leave out "
        f"`{beside.split('=')[0]}`: then the texts are drawn token by token.",
        shown.split("=")[0],
    )


_WITH_TEMPERATURE = (Multinomial, Conditional)  # of what other classes do nothing is known


def temperature_of(sampler: object) -> float | None:
    """Return the temperature of a sampler, 0 for greedy, if that is all that it changes; else None."""
    if type(sampler) is Greedy:
        return 0.0 if sampler.penalties == NO_PENALTIES else None
    if (
        not isinstance(sampler, Multinomial)
        or type(sampler) not in _WITH_TEMPERATURE
        or sampler.penalties != NO_PENALTIES
    ):
        return None
    if not sampler.warpers:
        return 1.0
    first = sampler.warpers[0]
    return float(first.t) if len(sampler.warpers) == 1 and type(first) is Temperature else None
