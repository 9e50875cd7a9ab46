"""`OptionPrior`: how probable the texts of a choice are anyway, to calibrate the choice by it (Zhao et al. 2021, arXiv:2102.09690).

The prior is the mean of the law of the choice after prompts without content, or after all prompts of a batch. A calibrated choice is made
by P(o) / prior(o), normalised over the texts: what the prompt says for each, beyond what the model would choose without it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

from fsm.errors import stacklevel_of_user
from outlines_cont.errors import CalibrationWarning, OptionError, OutlinesContError, located_in
from outlines_cont.generation.choices.option_law import OptionLaw, log_sum
from outlines_cont.generation.choices.spelling_tree import SpellingTree
from outlines_cont.generation.exact_choice import ExactChoice
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.interfaces import LanguageModel
from outlines_cont.state.row import StateRow

_LEAST_SHARE = 0.01


class OptionPrior:
    """The prior of some texts.

    Attributes:
        trees: the texts after each prompt without content, to be scored; none for that of a batch.
        is_of_batch: whether it is that of the batch itself.
    """

    def __init__(self, choice: ExactChoice, model: LanguageModel, against: Any) -> None:
        """Open the prompts of `against`, or take `"batch"`.

        Raises:
            OptionError: there is none, or the tokenizer cannot spell a text after one of them.
            PromptTypeError, EmptyPrompt, ContextLengthError: one cannot run.
        """
        self.is_of_batch = isinstance(against, str) and against == "batch"
        self._choice = choice
        if "" in choice.options:
            raise OptionError(
                "expected options of one character or more, for a choice with `against`, got ''. Name the case by a text, such as 'none'.",
                "options",
            )
        self.trees: list[SpellingTree] = []
        for row in [] if self.is_of_batch else opened_prompts(model, against):
            tree = choice.tree(model, row)
            if tree is None:
                raise OptionError(
                    "expected prompts as `against` after which the tokenizer can spell all options, got another.",
                    "against",
                )
            self.trees.append(tree)

    def logs(self, batch: Sequence[OptionLaw]) -> list[float]:
        """Return the natural logarithm of the prior of each text; `batch` are the laws after the prompts of the call, at temperature 1.

        Raises:
            OptionError: that of a batch of one row is asked for; or the prior of a text is zero.
            Exception: the error of a prompt without content.
        """
        laws = list(batch)
        if self.is_of_batch and len(laws) < 2:
            raise OptionError(
                f"expected two prompts or more with `against='batch'`, whose mean calibrates them, got {len(laws)}. Give prompts without "
                "content, such as `against=['Review: N/A\\nSentiment:']`.",
                "against",
            )
        if not self.is_of_batch:
            for tree in self.trees:
                if tree.error is not None:
                    raise tree.error
            laws = [OptionLaw(tree, self._choice.end) for tree in self.trees]
        found = [log_sum(logs) - math.log(len(laws)) for logs in zip(*(law.conditional for law in laws), strict=True)]
        if -math.inf in found:
            option = self._choice.options[found.index(-math.inf)]
            raise OptionError(
                f"expected prompts as `against` after which each option has some probability, got none for {option!r}. Give others.",
                "against",
            )
        return found

    def warn(self, laws: Sequence[OptionLaw]) -> None:
        """Warn where calibrating is doubtful: by the batch, or where the texts have less than 1 % of all probability."""
        warn_of_shares([law.share for law in laws])
        if self.is_of_batch:
            warnings.warn(
                "`against='batch'` takes the mean over the prompts of this call as what the model chooses anyway, so it makes all options "
                "about equally frequent: right only where they are so in truth. Give prompts without content where they may not be.",
                CalibrationWarning,
                stacklevel=stacklevel_of_user(),
            )


def opened_prompts(model: LanguageModel, against: Any) -> list[StateRow]:
    """Return prompts without content as rows; raise the error of one that cannot run, which names the option."""
    try:
        rows = [row for group in open_prompt(model, against, None, 0).rows for row in group]
        for row in rows:
            if row.error is not None:
                raise row.error
    except OutlinesContError as error:
        raise located_in(error, "against") from None
    return rows


def warn_of_shares(shares: Sequence[float]) -> None:
    """Warn where the texts have less than 1 % of all probability, by their shares after some rows."""
    small = sum(share < _LEAST_SHARE for share in shares)
    if small:
        warnings.warn(
            f"the options have less than 1 % of the probability after {small} of {len(shares)} prompts: the model wants to write "
            "something else, and no calibration helps. Put the options into the prompt, or begin each as the model would.",
            CalibrationWarning,
            stacklevel=stacklevel_of_user(),
        )
