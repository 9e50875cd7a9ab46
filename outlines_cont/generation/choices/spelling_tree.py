"""`SpellingTree`: the spellings of some texts after one row, as a tree of tokens, with the model's log-probability of each token in it.

`score` is the task of the engine that computes them, of any number of trees: the rows with what all spellings of their tree begin with in
one forward, then what is below that, a row for each path that no other continues, in a second one; both in one where the first has few
tokens. Nothing is drawn. `Scorings`: such tasks for rows that wait for them while they run.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from outlines_cont.interfaces import LanguageModel
from outlines_cont.state.row import StateRow

Path = tuple[int, ...]
"""Tokens after the row of a tree."""

Scoring = Generator[Any, None, None]
"""A task of the engine, which yields the steps that it awaits."""

_MAX_LOGITS = 2**26  # that one forward returns, 256 MB in float32
_LEAST = 16
_MAX_REPEATED = {"cpu": 4}  # tokens that are fed once more for some path, instead of in a forward of their own
_MAX_REPEATED_ELSE = 256  # on an accelerator, where these take no time
_MAX_COMMON = 31  # of them for each path: rows with more wait for each other, see `engine.scheduler.Reuse`


class SpellingTree:
    """The spellings of some texts after a row; it compares and hashes by identity.

    Attributes:
        row: the row, which ends where the texts begin.
        spellings: for each text the ids that spell it, at least one.
        error: why there are no log-probabilities; None if there are, or `score` has not ended.
    """

    def __init__(
        self, row: StateRow, spellings: Sequence[Path], ends: Sequence[int] = (), *, may_repeat: bool = False
    ) -> None:
        """Take a row without an error.

        `ends` are tokens whose log-probabilities after each spelling are wanted, too; `may_repeat`: whether few tokens may be fed for each
        path, in place of a forward for them alone.
        """
        self.row, self.spellings = replace(row, unscored=(), piece=None), tuple(spellings)
        self.error: Exception | None = None
        self._ends, self._may_repeat = tuple(ends), may_repeat
        self._wanted = _wanted(self.spellings, self._ends)
        self._found: dict[Path, dict[int, float]] = {}
        self._held: list[tuple[Path, StateRow]] = []  # the row and paths after it as they were fed

    def __len__(self) -> int:
        """Return how many tokens are fed for it after the row, those of common beginnings once for each path that has them."""
        return sum(map(len, self._leaves(())))

    # -- what is known once it is scored -------------------------------------------------------------------------------

    @property
    def is_scored(self) -> bool:
        """Whether all log-probabilities are known."""
        return len(self._found) == len(self._wanted)

    @property
    def is_over(self) -> bool:
        """Whether all is known that can be."""
        return self.is_scored or self.error is not None

    def logprobs(self, text: int) -> list[float]:
        """Return the log-probability of each token of the spelling of a text, given all before it."""
        spelling = self.spellings[text]
        return [self._found[spelling[:i]][token_id] for i, token_id in enumerate(spelling)]

    def end_logprob(self, text: int) -> float:
        """Return the log-probability that one of the ends is next after the spelling of a text; minus infinity without ends."""
        found = self._found.get(self.spellings[text], {})
        return _log_sum([found[token_id] for token_id in self._ends])

    def kv(self, text: int | None, *, may_cut: bool) -> Any:
        """Return the keys and values of the row and of all tokens of a spelling but the last, or of as many as are known.

        None as `text` is for those of the row alone. Those of a recurrent model may not be cut.
        """
        path = () if text is None else self.spellings[text][:-1]
        best, longest = self.row.kv, self.row.cached
        for held, row in self._held:
            common = _num_common(held, path)
            length = min(len(self.row.token_ids) + common, row.cached)
            if row.kv is not None and longest < length and (may_cut or common == len(held)):
                best, longest = row.kv[:length], length
        return best

    def release(self) -> None:
        """Drop the keys and values of the row, and of all paths."""
        self._held, self.row = [], replace(self.row, kv=None, logits=None)

    # -- what is fed ---------------------------------------------------------------------------------------------------

    @property
    def _stem(self) -> Path:
        """The beginning of all spellings after which nothing else is wanted, and that is fed with the row."""
        stem: Path = ()
        while len(self._wanted[stem]) == 1 and (*stem, self._wanted[stem][0]) in self._wanted:
            stem = (*stem, self._wanted[stem][0])
        return stem

    def is_joint(self, model: LanguageModel, *, num_cached: int | None = None) -> bool:
        """Whether the row, and the stem, are fed with each path below it: no forward for them alone.

        `num_cached` is the number of tokens of the row that are cached; None for as many as it has keys and values of.
        """
        stem, row = self._stem, self.row
        num_cached = row.cached if num_cached is None else num_cached
        most = _MAX_REPEATED.get(model.device.type, _MAX_REPEATED_ELSE)
        num_common, num_leaves = len(row.token_ids) - num_cached + len(stem), len(self._leaves(stem))
        if not self._may_repeat or model.is_recurrent or not model.can_stack or num_leaves < 2:
            return False
        return 0 < num_common <= _MAX_COMMON and num_common * (num_leaves - 1) <= most

    def _leaves(self, stem: Path) -> list[Path]:
        """Return the paths beyond the stem after which logits are wanted, and that no other of them continues."""
        inner = {path[:-1] for path in self._wanted if path}
        return [path for path in self._wanted if path not in inner and len(path) > len(stem)]

    def first(self, model: LanguageModel) -> list[Reading]:
        """Return what is read first: along the row, and its stem; of a row whose logits are known these alone feed nothing."""
        row, stem = self.row, self._stem
        is_known, paths = row.logits is not None and row.cached >= len(row.token_ids), _beginnings(stem)
        if self.is_joint(model):
            return [self._reading(row, (), paths[:1])] if is_known else []
        if not is_known:
            return [self._reading(row, stem, paths)]
        return [self._reading(row, (), paths[:1]), *([self._reading(row, stem, paths[1:])] if stem else [])]

    def others(self) -> list[Reading]:
        """Return what is read then: along a row for each path below the stem that no other continues."""
        if self.error is not None:
            return []
        below, base = self._held[-1] if self._held else ((), self.row)
        found, known = list[Reading](), {*self._found}
        for leaf in self._leaves(self._stem):
            paths = [path for path in _beginnings(leaf) if path not in known]
            known.update(paths)
            if paths:  # else an interrupted task has read them
                found.append(self._reading(base, leaf[len(below) :], paths))
        return found

    def _reading(self, row: StateRow, tokens: Path, paths: Sequence[Path]) -> Reading:
        at = {len(self.row.token_ids) - 1 + len(path): path for path in paths}
        return Reading(self, at, row.append(tokens, reset=False), {i: self._wanted[path] for i, path in at.items()})

    def take(self, reading: Reading, left: StateRow, scores: Mapping[int, Sequence[float]]) -> None:
        """Take the log-probabilities that were read, and the keys and values of the row, or its error."""
        if left.error is not None:
            self.error = left.error
            return
        self._held.append((left.token_ids[len(self.row.token_ids) :], left))
        for index, path in reading.paths.items():
            self._found[path] = dict(zip(self._wanted[path], scores[index], strict=True))


class Reading(NamedTuple):
    """A row that is fed for the log-probabilities of a tree.

    Attributes:
        tree: the tree.
        paths: the paths after which they are read, by the index of the last token.
        row: the row.
        wanted: the ids that are wanted after each index.
    """

    tree: SpellingTree
    paths: dict[int, Path]
    row: StateRow
    wanted: dict[int, list[int]]


def score(model: LanguageModel, trees: Sequence[SpellingTree], *, is_urgent: bool = False) -> Scoring:
    """Return a task that computes the log-probabilities of trees; those that cannot be computed have an error then.

    `is_urgent`: whether running rows wait for it.

    Cost: as a rule two forwards, of all trees together: one of the rows that are not fed yet, with what all spellings of a tree begin with,
    and one with a row for each path below that; one where the first has few tokens, which are fed for each path then; more than two
    where they return more than 2 ** 26 logits, or for long rows (see `Engine`).
    """
    yield from _read(model, [reading for tree in trees for reading in tree.first(model)], is_urgent=is_urgent)
    below = [reading for tree in trees for reading in tree.others()]
    width = max((len(reading.wanted) for reading in below), default=1)
    most = max(_MAX_LOGITS // (model.vocab_size * width), _LEAST)
    for start in range(0, len(below), most):
        yield from _read(model, below[start : start + most], is_urgent=is_urgent)


def _read(model: LanguageModel, readings: Sequence[Reading], *, is_urgent: bool) -> Scoring:
    found = yield from model.read_paths([(one.row, one.wanted) for one in readings], is_urgent=is_urgent)
    for one, (left, scores) in zip(readings, found, strict=True):
        one.tree.take(one, left, scores)


class Scorings:
    """The trees that are being scored for rows that wait for them, each by a task of its own."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._tasks: dict[tuple[SpellingTree, ...], tuple[Scoring, Any]] = {}

    def are_scored(self, trees: Sequence[SpellingTree]) -> bool:
        """Return whether trees are scored, or have an error; called between two steps of the engine until they are.

        What is missing is submitted to the engine.
        """
        key = tuple(trees)
        if all(tree.is_over for tree in key):
            return True
        task, step = self._tasks.pop(key, None) or (score(self._model, key, is_urgent=True), None)
        if step is not None:
            step.note()
        if step is None or step.is_over:
            step = next(task, None)
        if step is not None:  # else it has ended, or was interrupted, and begins again with the next call
            self._tasks[key] = task, step
        return all(tree.is_over for tree in key)

    def cancel(self, trees: Sequence[SpellingTree]) -> None:
        """Cancel the scoring of trees, if it runs; it begins again if they are asked for again."""
        task, _ = self._tasks.pop(tuple(trees), None) or (None, None)
        if task is not None:
            task.close()

    def close(self) -> None:
        """Cancel what is being scored."""
        for task, _ in self._tasks.values():
            task.close()


def _beginnings(path: Path) -> list[Path]:
    """Return all paths with which a path begins, the empty one first, itself last."""
    return [path[:i] for i in range(len(path) + 1)]


def _wanted(spellings: Sequence[Path], ends: Sequence[int]) -> Mapping[Path, list[int]]:
    """Return the ids that are wanted after each path, shorter paths first where one begins another."""
    wanted: dict[Path, dict[int, None]] = {}
    for spelling in spellings:
        for i, token_id in enumerate(spelling):
            wanted.setdefault(spelling[:i], {})[token_id] = None
        if ends:
            wanted.setdefault(spelling, {}).update(dict.fromkeys(ends))
    return {path: [*token_ids] for path, token_ids in wanted.items()}


def _num_common(first: Path, second: Path) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _log_sum(logs: Sequence[float]) -> float:
    """Return log(sum(exp(log) for log in logs)); minus infinity for none."""
    high = max(logs, default=-math.inf)
    return high if high == -math.inf else high + math.log(sum(math.exp(log - high) for log in logs))
