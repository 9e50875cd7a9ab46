"""`ChoiceRows`: the rows of a call that choose one of some texts as a whole (`exact_choice`), each with its `ChosenProgram`, which writes
the text when all texts are scored. What the texts are calibrated by is a `Prior`. `SpanChoice`: the same for a span of a fork of a script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from outlines_cont.engine.piece import RowStatus
from outlines_cont.engine.row import Row, RowProgram
from outlines_cont.engine.steering import follow_policies
from outlines_cont.errors import KVBudgetError, OptionError
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
    those that think first, and of all rows with `feeds_first`, in jobs that their programs submit.
    """

    def __init__(
        self,
        choice: ExactChoice,
        model: LanguageModel,
        temperature: float,
        prior: Prior | None = None,
        *,
        feeds_first: bool = False,
    ) -> None:
        self.choice, self.temperature, self.prior = choice, temperature, prior
        self._model, self._feeds_first = model, feeds_first
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
        """Return the texts after a row; None if one has no room or cannot be spelled, or if they are too long to be scored by default.

        Raises:
            OptionError: one has no room within `max_tokens`, and `exact=True` was given.
        """
        key = _key(row)
        if key not in self._trees:
            tree = self.choice.tree(self._model, _as_value(row) if self.has_begun(row) else row.source)
            is_scored = tree is not None and (self.prior is not None or self.choice.is_affordable(tree))
            self._trees[key] = tree if is_scored else None
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

    def has_begun(self, row: Row) -> bool:
        """Return whether a row feeds what stands before the choice by itself; else it is its source, which is fed with the texts."""
        return self._feeds_first or row.length > len(row.source.token_ids)

    def program(self) -> ChosenProgram:
        """Return the program of a row that chooses."""
        return ChosenProgram(self)

    def law(self, tree: SpellingTree) -> OptionLaw:
        """Return the law of a tree, or raise its error."""
        if tree.error is not None:
            raise tree.error
        if tree not in self._laws:
            self._laws[tree] = OptionLaw(tree, self.choice.end, self.temperature or 1.0, self._prior_logs())
            if self._feeds_first:
                tree.release()  # the row has keys and values of its own
        return self._laws[tree]

    def _prior_logs(self) -> list[float] | None:
        if self.prior is not None and self._log_prior is None:
            batch = self._batch if self.prior.is_of_batch else []
            self._log_prior = self.prior.logs(
                [OptionLaw(tree, self.choice.end) for _, tree in batch if tree.error is None]
            )
        return self._log_prior

    def has_no_room(self, tree: SpellingTree) -> bool:
        """Return whether there was no room for the keys and values of the texts, and tokens may be drawn in place of that."""
        return isinstance(tree.error, KVBudgetError) and not self.choice.is_exact and self.prior is None

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

    def cancel(self, row: Row) -> None:
        """Cancel the scoring of the texts after a row, if it runs."""
        tree = self._trees.get(_key(row))
        if tree is not None:
            self._scorings.cancel([tree])

    def close(self) -> None:
        """Cancel what is being scored, and drop the keys and values of the texts."""
        self._scorings.close()
        for tree in filter(None, self._trees.values()):
            tree.release()


def _key(row: Row) -> Any:
    # Equal ids of pinned tokens, and of images, have other keys and values.
    return tuple(row.key_ids), id(row.source.kv) if row.source.pinned else None


def _as_value(row: Row) -> StateRow:
    """Return a row that has fed all of its tokens as a value."""
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
        if self.is_ready(row):
            row.program = None
            self.begin(row)

    def is_ready(self, row: Row) -> bool:
        """Return whether what stands before the choice is fed, and the texts are scored; else the row waits."""
        if self._rows.has_begun(row) and not row.feed.is_ready(row.length):
            row.need_logits(TokenSet.all)
            row.status = RowStatus.CALLING
            return False
        tree = self._rows.tree_of(row)
        if tree is not None and not self._rows.is_scored(tree):
            row.status = RowStatus.CALLING
            return False
        return True

    def begin(self, row: Row) -> None:
        """Write the text, and end the piece; where that is impossible, follow the policies."""
        tree = self._rows.tree_of(row)
        if tree is None or self._rows.has_no_room(tree):
            follow_policies(row)
        else:
            row.guarded(self._write, row, tree)

    def _write(self, row: Row, tree: SpellingTree) -> None:
        law = self._rows.law(tree)
        text = law.best
        if self._rows.temperature != 0:
            text, row.stream = law.draw(row.stream.peek()), row.stream.after()
        begins_here = not self._rows.has_begun(row)
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


class SpanChoice:
    """Chooses the text of a span of a fork as a whole, in place of its policies (`programs.fork_program.SpanPlanner`).

    The forks of a program share the `ChoiceRows` of equal choices, so those with the same tokens are scored once. Cost: the row first feeds
    what stands before, then as `spelling_tree.score`.
    """

    def __init__(self, rows: ChoiceRows) -> None:
        self._rows, self._program = rows, rows.program()

    @staticmethod
    def rows(choice: ExactChoice, model: LanguageModel, temperature: float) -> ChoiceRows:
        """Return the rows of equal choices in a program."""
        return ChoiceRows(choice, model, temperature, feeds_first=True)

    def plan(self, row: Row) -> bool:
        """Write the span if its texts are scored, or leave it to the policies; return False while the row waits."""
        is_ready = self._program.is_ready(row)
        if is_ready:
            self._program.begin(row)
            if row.piece.finish_reason:
                follow_policies(row)  # begins what follows the span
        return is_ready

    def close(self, row: Row) -> None:
        """Cancel what the row waits for."""
        self._rows.cancel(row)


def take_kv(row: Row, tree: SpellingTree, text: int | None = None) -> None:
    """Let a row that has fed nothing begin with the keys and values of its tree, with those of a text but for its last token."""
    kv = tree.kv(text, may_cut=not row.model.is_recurrent)
    if kv is not None and len(kv) > row.cached and not row.tokens.unscored:
        row.base_kv, row.feed.cached = kv, len(kv)
