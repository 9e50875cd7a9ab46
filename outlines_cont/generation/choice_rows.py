"""`ChoiceRows`: the rows of a call that choose one of some texts as a whole (`exact_choice`), each with its `ChosenProgram`, which writes
the text when all texts are scored. What the texts are calibrated by is a `Prior`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from outlines_cont.engine.piece import RowStatus
from outlines_cont.engine.row import Row, RowProgram
from outlines_cont.engine.steering import follow_policies
from outlines_cont.errors import OptionError
from outlines_cont.generation.choices.option_law import OptionLaw
from outlines_cont.generation.choices.spelling_tree import Scoring, Scorings, SpellingTree, score
from outlines_cont.generation.exact_choice import ExactChoice
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.branch import TokenSet
from outlines_cont.state.row import FORCED, GENERATED, StateRow


class Prior(Protocol):
    """How probable the texts are anyway; see `option_prior.OptionPrior`."""

    trees: list[SpellingTree]
    is_of_batch: bool

    def logs(self, batch: Sequence[OptionLaw]) -> list[float]:
        """Return the logarithm of the prior of each text."""

    def warn(self, laws: Sequence[OptionLaw]) -> None:
        """Warn where calibrating is doubtful."""


class ChoiceRows:
    """The rows of a call that choose one of some texts; rows with the same tokens are scored once.

    Of rows that choose where they begin (`prepare`) the texts are scored by `task`, which is to be exhausted before they are submitted; of
    those that think first in jobs that their programs submit.
    """

    def __init__(
        self, choice: ExactChoice, model: LanguageModel, temperature: float, prior: Prior | None = None
    ) -> None:
        self.choice, self.temperature, self.prior = choice, temperature, prior
        self._model = model
        self._trees: dict[Any, SpellingTree | None] = {}
        self._laws: dict[SpellingTree, OptionLaw] = {}
        self._batch: list[tuple[Row, SpellingTree]] = []  # the rows that were prepared
        self._log_prior: list[float] | None = None
        self._scorings = Scorings(model)

    def prepare(self, row: Row) -> None:
        """Take a row that was not submitted yet, and chooses where it begins."""
        tree = self.tree_of(row)
        if tree is not None:
            self._batch.append((row, tree))

    def tree_of(self, row: Row) -> SpellingTree | None:
        """Return the texts after a row; None where one has no room, or cannot be spelled.

        Raises:
            OptionError: one has no room within `max_tokens`, and `exact=True` was given.
        """
        # Equal ids of pinned tokens, and of images, have other keys and values.
        key = tuple(row.key_ids), id(row.source.kv) if row.source.pinned else None
        if key not in self._trees:
            self._trees[key] = self.choice.tree(self._model, _as_value(row))
        tree = self._trees[key]
        longest, room = 0 if tree is None else max(map(len, tree.spellings)), row.room()
        if room is None or room >= longest:
            return tree
        most = row.piece.spec.max_tokens
        if self.choice.is_exact and most is not None and most < longest:
            raise OptionError(
                f"expected room for {longest} tokens, those of the longest text of a choice with `exact=True`, got `max_tokens={most}`. "
                "Raise it.",
                "max_tokens",
            )
        return None

    def program(self) -> ChosenProgram:
        """Return the program of a row that chooses."""
        return ChosenProgram(self)

    def law(self, tree: SpellingTree) -> OptionLaw:
        """Return the law of a tree, or raise its error."""
        if tree.error is not None:
            raise tree.error
        if tree not in self._laws:
            self._laws[tree] = OptionLaw(tree, self.choice.end, self.temperature or 1.0, self._prior_logs())
        return self._laws[tree]

    def _prior_logs(self) -> list[float] | None:
        if self.prior is not None and self._log_prior is None:
            batch = self._batch if self.prior.is_of_batch else []
            self._log_prior = self.prior.logs(
                [OptionLaw(tree, self.choice.end) for _, tree in batch if tree.error is None]
            )
        return self._log_prior

    def warn(self) -> None:
        """Warn of what is doubtful about a calibrated choice, when all rows have chosen."""
        if self.prior is not None and self._laws:
            self.prior.warn([*self._laws.values()])

    def task(self) -> Scoring:
        """Return the task that scores the texts after all rows that were prepared. Cost: see `spelling_tree.score`."""
        own = [tree for tree in self._trees.values() if tree is not None]
        yield from score(self._model, [*own, *(() if self.prior is None else self.prior.trees)])
        for row, tree in self._batch:
            take_kv(row, tree)

    def is_scored(self, tree: SpellingTree) -> bool:
        """Return whether the law of a tree is known; called between two steps of the engine until it is, which submits what is missing."""
        return self._scorings.are_scored([tree])

    def close(self) -> None:
        """Cancel what is being scored, and drop the keys and values of the texts."""
        self._scorings.close()
        for tree in filter(None, self._trees.values()):
            tree.release()


def _as_value(row: Row) -> StateRow:
    """Return a row that begins to choose as a value: its source, or after thoughts that it has fed the row as it is now."""
    if row.length == len(row.source.token_ids):
        return row.source
    written = row.tokens.written_to(row.source, has_failed=False)
    kv = row.model.engine.kv_of(row)
    return replace(written, kv=kv, logits=row.logits, piece=None, error=None)


class ChosenProgram(RowProgram):
    """The program of a row that chooses a text when all are scored, and writes it; where that is impossible it draws token by token."""

    reads_ahead = True  # while it waits for the scores, which need what the row has not fed

    def __init__(self, rows: ChoiceRows) -> None:
        self._rows = rows

    def plan(self, row: Row) -> None:
        """Wait for the scores, then write the text, and end."""
        if row.length > len(row.source.token_ids) and not row.feed.is_ready(row.length):  # it has thought
            row.need_logits(TokenSet.all)
            row.status = RowStatus.CALLING
            return
        tree = self._rows.tree_of(row)
        if tree is not None and not self._rows.is_scored(tree):
            row.status = RowStatus.CALLING
            return
        row.program = None
        if tree is None:
            follow_policies(row)
        else:
            row.guarded(self._write, row, tree)

    def _write(self, row: Row, tree: SpellingTree) -> None:
        law = self._rows.law(tree)
        text = law.best
        if self._rows.temperature != 0:
            text, row.stream = law.draw(row.stream.peek()), row.stream.after()
        begins_here = row.length == len(row.source.token_ids)
        for token in law.tokens(text):
            row.append(token.token_id, FORCED if token.is_forced else GENERATED, token.logprob, token.sampling_logprob)
            row.counts.forced_tokens += token.is_forced
            row.counts.sampled_tokens += not token.is_forced
        if begins_here:
            take_kv(row, tree, text)
        # What is left of the probability of the text by the law is that of its end, and so is what is left of the model's.
        sampled = law.log_probabilities[text] - sum(token.sampling_logprob for token in law.tokens(text))
        ratio = (row.length, law.log_ends[text] - sampled)
        row.tokens = row.tokens.changed(end_ratios=(*row.tokens.end_ratios, ratio))
        is_begun = law.is_begun(text)
        if is_begun:  # as where the end is drawn under a mask
            row.tokens = row.tokens.changed(ends=(*row.tokens.ends, (row.length, law.log_ends[text])))
        row.end("stop" if is_begun else "constraint")
        row.leave_when_scored()


def take_kv(row: Row, tree: SpellingTree, text: int | None = None) -> None:
    """Let a row that has fed nothing begin with the keys and values of its tree, with those of a text but for its last token."""
    kv = tree.kv(text, may_cut=not row.model.is_recurrent)
    if kv is not None and len(kv) > row.cached and not row.tokens.unscored:
        row.base_kv, row.feed.cached = kv, len(kv)
