"""`FieldPrior`: how probable the texts of a field are anyway: after the same beginning of a record, behind prompts without content."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from outlines_cont.generation.choices.field_law import Field, FieldLaw
from outlines_cont.generation.choices.option_law import log_sum
from outlines_cont.generation.choices.spelling_tree import SpellingTree
from outlines_cont.interfaces import LanguageModel
from outlines_cont.state.row import StateRow


class FieldPrior:
    """The prior of fields, as the mean over some prompts of the law of the texts after them.

    Attributes:
        shares: of each law that was calibrated, how probable it is that the model writes one of the texts.
    """

    def __init__(self, model: LanguageModel, rows: Sequence[StateRow]) -> None:
        """Take the prompts as rows without errors."""
        self.shares: list[float] = []
        self._may_cut = not model.is_recurrent
        self._prompts = [replace(row, piece=None, unscored=()) for row in rows]
        self._last = [*self._prompts]  # the longest that was fed of each
        self._trees: dict[tuple[int, ...], list[SpellingTree]] = {}
        self._logs: dict[tuple[int, ...], list[float]] = {}

    def trees(self, written: Sequence[int], field: Field) -> list[SpellingTree]:
        """Return the texts of a field after each prompt with the tokens of a record that are written before it."""
        key = tuple(written)
        if key not in self._trees:
            self._trees[key] = [
                SpellingTree(_extended(prompt, last, key), field.paths)
                for prompt, last in zip(self._prompts, self._last, strict=True)
            ]
        return self._trees[key]

    def logs(self, written: Sequence[int], field: Field) -> list[float]:
        """Return the natural logarithm of the prior of each text; its trees are scored.

        Raises:
            Exception: the error of a prompt.
        """
        key = tuple(written)
        if key not in self._logs:
            self._logs[key] = self._mean(key, field)
        return self._logs[key]

    def _mean(self, written: tuple[int, ...], field: Field) -> list[float]:
        found: list[list[float]] = []
        for number, tree in enumerate(self._trees[written]):
            if tree.error is not None:
                raise tree.error
            found.append(FieldLaw(field, tree).conditional)
            kv = tree.kv(None, may_cut=self._may_cut)
            prompt = self._prompts[number]
            self._last[number] = replace(tree.row, kv=kv, logits=None)
            if kv is not None and self._may_cut and prompt.cached < len(prompt.token_ids) <= len(kv):
                self._prompts[number] = replace(prompt, kv=kv[: len(prompt.token_ids)], logits=None)
            tree.release()
        return [log_sum(logs) - math.log(len(found)) for logs in zip(*found, strict=True)]


def _extended(prompt: StateRow, last: StateRow, written: tuple[int, ...]) -> StateRow:
    """Return a prompt with tokens after it, with the keys and values of the last row that was made of it, if that begins so."""
    token_ids = (*prompt.token_ids, *written)
    base = last if token_ids[: len(last.token_ids)] == tuple(last.token_ids) else prompt
    return base.append(token_ids[len(base.token_ids) :], reset=False)
