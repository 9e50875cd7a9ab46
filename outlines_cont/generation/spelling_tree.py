"""`SpellingTree`: the spellings of some texts after one row, as a tree of tokens, with the model's log-probability of each token in it.

`score` is the task of the engine that computes them, of any number of trees: the rows with what all spellings of their tree begin with in
one forward, then what is below that, a row for each path that no other continues, in a second one. Nothing is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from outlines_cont.engine.job import Job, Step, Task
from outlines_cont.engine.path_row import PathRow, token_logprobs
from outlines_cont.engine.row import invalid_logits
from outlines_cont.errors import shortened
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.meter import Meter
from outlines_cont.state.row import StateRow

Path = tuple[int, ...]
"""Tokens after the row of a tree."""

_MAX_LOGITS = 2**26  # that one forward returns, 256 MB in float32
_LEAST = 16


class SpellingTree:
    """The spellings of some texts after a row; it compares and hashes by identity.

    Attributes:
        row: the row, which ends where the texts begin.
        spellings: for each text the ids that spell it, at least one.
        error: why there are no log-probabilities; None if there are, or `score` has not ended.
    """

    def __init__(self, row: StateRow, spellings: Sequence[Path], ends: Sequence[int] = ()) -> None:
        """Take a row without an error; `ends` are tokens whose log-probabilities after each spelling are wanted, too."""
        self.row, self.spellings = row, tuple(spellings)
        self.error: Exception | None = None
        self._ends = tuple(ends)
        self._wanted = _wanted(self.spellings, self._ends)
        self._found: dict[Path, dict[int, float]] = {}
        self._held: list[tuple[Path, RowKV]] = []  # the keys and values of the row and of paths after it

    def __len__(self) -> int:
        """Return how many tokens are fed for it after the row, those of common beginnings once for each path that has them."""
        return sum(map(len, self._leaves(())))

    # -- what is known once it is scored -------------------------------------------------------------------------------

    @property
    def is_scored(self) -> bool:
        """Whether all log-probabilities are known."""
        return len(self._found) == len(self._wanted)

    def logprobs(self, text: int) -> list[float]:
        """Return the log-probability of each token of the spelling of a text, given all before it."""
        spelling = self.spellings[text]
        return [self._found[spelling[:i]][token_id] for i, token_id in enumerate(spelling)]

    def end_logprob(self, text: int) -> float:
        """Return the log-probability that one of the ends is next after the spelling of a text; minus infinity without ends."""
        found = self._found.get(self.spellings[text], {})
        return _log_sum([found[token_id] for token_id in self._ends])

    def kv(self, text: int, *, may_cut: bool) -> RowKV | None:
        """Return the keys and values of the row and of all tokens of a spelling but the last, or of as many as are known.

        Those of a recurrent model may not be cut.
        """
        path = self.spellings[text][:-1]
        best, longest = self.row.kv, self.row.cached
        for held, kv in self._held:
            common = _num_common(held, path)
            length = len(self.row.token_ids) + common
            if longest < min(length, len(kv)) and (may_cut or common == len(held)):
                best, longest = kv[:length], min(length, len(kv))
        return best

    def release(self) -> None:
        """Drop the keys and values of all paths."""
        self._held = []

    # -- what is fed ---------------------------------------------------------------------------------------------------

    @property
    def _stem(self) -> Path:
        """The beginning of all spellings after which nothing else is wanted, and that is fed with the row."""
        stem: Path = ()
        while len(self._wanted[stem]) == 1 and (*stem, self._wanted[stem][0]) in self._wanted:
            stem = (*stem, self._wanted[stem][0])
        return stem

    def _leaves(self, stem: Path) -> list[Path]:
        """Return the paths beyond the stem after which logits are wanted, and that no other of them continues."""
        inner = {path[:-1] for path in self._wanted if path}
        return [path for path in self._wanted if path not in inner and len(path) > len(stem)]

    def _index(self, path: Path) -> int:
        """Return the index of the last token of a path in its row."""
        return len(self.row.token_ids) - 1 + len(path)

    def first_row(self, model: LanguageModel, counts: Meter) -> PathRow | None:
        """Return the row to feed first; None where nothing is to be fed."""
        stem, paths = self._stem, [self._stem[:i] for i in range(len(self._stem) + 1)]
        if self.row.logits is not None and self.row.cached == len(self.row.token_ids):
            found = token_logprobs(self.row.logits, self._wanted[()])
            if found is None:
                self.error = invalid_logits(shortened(repr(self.row.text(model.tokenizer))))
                return None
            self._note((), found)
            paths = paths[1:]
        if not paths:
            return None
        source = replace(self.row, unscored=(), piece=None).append(stem, reset=False)
        return PathRow(source, model, {self._index(path): self._wanted[path] for path in paths}, counts=counts)

    def other_rows(self, model: LanguageModel, fed: StateRow | None, counts: Meter) -> list[tuple[Path, PathRow]]:
        """Return the rows to feed after the first, which is `fed`, each with its path."""
        stem = self._stem
        base = fed or replace(self.row, unscored=(), piece=None)
        found, known = list[tuple[Path, PathRow]](), {stem[:i] for i in range(len(stem) + 1)}
        for leaf in self._leaves(stem):
            paths = [path for i in range(len(stem) + 1, len(leaf) + 1) if (path := leaf[:i]) not in known]
            known.update(paths)
            source = base.append(leaf[len(stem) :], reset=False)
            wanted = {self._index(path): self._wanted[path] for path in paths}
            found.append((leaf, PathRow(source, model, wanted, counts=counts)))
        return found

    def take(self, path: Path, row: PathRow, left: StateRow) -> None:
        """Take the log-probabilities that a row along a path has read, its keys and values, or its error."""
        self.error = self.error or left.error
        if left.kv is not None and left.error is None:
            self._held.append((path, left.kv))
        for i in range(len(path) + 1):
            scores = row.scores.get(self._index(path[:i]))
            if scores is not None:
                self._note(path[:i], scores)

    def take_first(self, row: PathRow, left: StateRow) -> None:
        """Do the same for the row that was fed first."""
        self.take(self._stem, row, left)

    def _note(self, path: Path, scores: Sequence[float]) -> None:
        self._found[path] = dict(zip(self._wanted[path], scores, strict=True))


def score(model: LanguageModel, trees: Sequence[SpellingTree]) -> Task:
    """Return a task that computes the log-probabilities of trees; those that cannot be computed have an error then.

    Cost: at most two forwards, of all trees together: one of the rows that are not fed yet, with what all spellings of a tree begin with,
    and one with a row for each path below that; more where they return more than 2 ** 26 logits, or for long rows (see `Engine`).
    """
    counts = Meter()
    made = [(tree, tree.first_row(model, counts)) for tree in trees]
    rows = [row for _, row in made if row is not None]
    left = yield from _run(model, rows, counts)
    below: list[tuple[SpellingTree, Path, PathRow]] = []
    for tree, row in made:
        if row is not None:
            tree.take_first(row, left[row])
        if tree.error is None:
            fed = None if row is None else left[row]
            below += [(tree, path, other) for path, other in tree.other_rows(model, fed, counts)]
    width = max((len(path) for _, path, _ in below), default=1)
    most = max(_MAX_LOGITS // (model.vocab_size * width), _LEAST)
    for start in range(0, len(below), most):
        part = below[start : start + most]
        left = yield from _run(model, [row for _, _, row in part], counts)
        for tree, path, row in part:
            tree.take(path, row, left[row])


def _run(
    model: LanguageModel, rows: Sequence[PathRow], counts: Meter
) -> Generator[Step, None, dict[PathRow, StateRow]]:
    """Return a task that runs rows to their end, and returns what each has become."""
    if not rows:
        return {}
    job = Job(rows, counts)
    model.engine.submit(job)
    yield from model.engine.steps(job)
    return {row: job.done[index] for index, row in enumerate(rows)}


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
