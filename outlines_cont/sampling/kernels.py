"""`TokenCounts`: incremental statistics of one sequence for samplers: token histograms of the whole row and of its generated part for
penalties, the ids in order for `DRY`, and prefix sums of the surprisal for warpers that follow it. Appending and removing a token is
O(1), on the host, in numpy; a fork is a copy.

Kernels that work on blocks of each row of logits instead of sorting it: `most_probable` (argmax), `inverse_cdf` (inverse transform
sampling by prefix sums over blocks of 256 probabilities, in float64), and `TopBlocks`, the blocks of 32 logits that contain the n largest,
with a floor that warpers raise; it tells for which rows these do not suffice. `not_below` truncates logits below a floor. Short rows (for
the first two up to 4096 values) are processed whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray


class TokenCounts:
    """The token counts of one running row for penalties and warpers, updated token by token.

    A distinct token keeps its column in the arrays of counts, with a count of 0, after it was removed.

    Attributes:
        surprise_start: index of the first token that counts in `surprise`; None if none does.
    """

    def __init__(
        self,
        token_ids: Sequence[int],
        is_generated: Sequence[bool],
        drawn: Sequence[float | None] | None = None,
        surprise_start: int | None = None,
    ) -> None:
        """Count a row.

        Args:
            token_ids: T ids, those of the prompt included.
            is_generated: T flags: whether the token counts as generated.
            drawn: T log-probabilities with which the tokens were drawn, None for a token that was not; None if no token was.
            surprise_start: see above.

        Cost: O(T log T), in numpy; once per row.
        """
        self.surprise_start = surprise_start
        self._row, self._length = np.array(token_ids, dtype=np.int64), len(token_ids)
        # (bits, tokens): the surprisal of all tokens that were drawn before each index, and their number.
        self._sums: list[tuple[float, int]] = [(0.0, 0)]
        for logprob in drawn if drawn is not None else (None,) * self._length:
            self._sums.append(_plus(self._sums[-1], logprob))
        self._ids, columns = np.unique(self._row, return_inverse=True)
        self._num = len(self._ids)
        # Row 0: in the whole sequence. Row 1: generated.
        generated = np.bincount(columns, np.asarray(is_generated, float), self._num)
        self._counts = np.stack([np.bincount(columns, minlength=self._num), generated]).astype(np.int64)
        self._column = {token_id: column for column, token_id in enumerate(self._ids.tolist())}

    def add(self, token_id: int, is_generated: bool, logprob: float | None = None) -> None:
        """Count an appended token; `logprob` is None if it was not drawn. Cost: O(1), amortised."""
        self._row = _with_room(self._row, self._length)
        self._row[self._length] = token_id
        self._length += 1
        self._sums.append(_plus(self._sums[-1], logprob))
        column = self._column.setdefault(token_id, self._num)
        if column == self._num:
            self._ids, self._counts = _with_room(self._ids, column), _with_room(self._counts, column)
            self._ids[column], self._num = token_id, column + 1
        self._counts[: 1 + is_generated, column] += 1

    def remove(self, token_id: int, is_generated: bool) -> None:
        """Uncount one of the last tokens, which are removed; they may be passed in any order. Cost: O(1)."""
        self._length -= 1
        self._sums.pop()
        if self.surprise_start is not None:
            self.surprise_start = min(self.surprise_start, self._length)
        self._counts[: 1 + is_generated, self._column[token_id]] -= 1

    def fork(self) -> TokenCounts:
        """Return an independent copy. Cost: O(T)."""
        fork = copy(self)
        fork._row, fork._sums = self._row.copy(), [*self._sums]
        fork._ids, fork._counts, fork._column = self._ids.copy(), self._counts.copy(), {**self._column}
        return fork

    @property
    def row(self) -> NDArray[np.int64]:
        """(T,) int64: all ids in order; a view."""
        return self._row[: self._length]

    @property
    def surprise(self) -> tuple[float, int]:
        """The surprisal, in bits, of all tokens that were drawn since `surprise_start`, and their number."""
        if self.surprise_start is None:
            return 0.0, 0
        (bits, count), (before, first) = self._sums[-1], self._sums[self.surprise_start]
        return bits - before, count - first

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """(D,) int64: the distinct tokens that ever occurred, unordered; a view."""
        return self._ids[: self._num]

    @property
    def in_row(self) -> NDArray[np.int64]:
        """(D,) int64: the number of occurrences of each in the row; a view."""
        return self._counts[0, : self._num]

    @property
    def generated(self) -> NDArray[np.int64]:
        """(D,) int64: the number of times that each was generated; a view."""
        return self._counts[1, : self._num]


def counts_of_row(counts: Sequence[TokenCounts | None] | None, row: int, warper: object = None) -> TokenCounts:
    """Return the counts of row number `row`, which `warper` needs, or the penalties of the row if that is None.

    Raises:
        TypeError: they are missing.
    """
    found = None if counts is None else counts[row]
    if found is None:
        who = "its penalties need" if warper is None else f"{warper!r} needs"
        raise TypeError(f"expected the token counts of row {row} as `counts`, which {who}, got None")
    return found


def _with_room(array: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return an array with room for one more column after the first `length`; it is doubled if there is none."""
    if length < array.shape[-1]:
        return array
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, max(length, 64))])


def _plus(total: tuple[float, int], logprob: float | None) -> tuple[float, int]:
    return total if logprob is None else (total[0] - logprob / math.log(2), total[1] + 1)


# Rows up to this length are processed whole: fewer calls then count more than fewer passes.
_SMALL = 4096
# Values per block: a pass over blocks of this size is as fast as memory, and their sums are few.
_SIZE = 256
# Logits per block of `TopBlocks`: both the maxima of the blocks and the logits in the chosen ones are few.
_TOP_SIZE = 32

# A token that is less likely than another one by this difference of logits is never drawn, in float64 either.
_DEEPEST = 1000.0

Drawn = tuple[torch.Tensor, torch.Tensor]
"""(R,) int64 indices, and (R,) log-probabilities of these."""


def most_probable(logits: torch.Tensor, normal: torch.Tensor | None = None) -> Drawn:
    """Return the largest of each row of (R, V) logits, of equal ones the first; `normal` is their `log_softmax`, if that is known.

    Cost: a softmax if it is not; on a CPU the index by numpy takes a tenth of the time of that by PyTorch.
    """
    if _is_numpy(logits):
        token_ids = torch.from_numpy(logits.detach().numpy().argmax(axis=-1, keepdims=True))
    else:
        token_ids = logits.max(dim=-1, keepdim=True).indices
    normal = logits.log_softmax(dim=-1) if normal is None else normal
    return token_ids.squeeze(-1), normal.gather(-1, token_ids).squeeze(-1)


def largest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the `count` largest of each row of (R, N) values, descending, and (R, 1) int64, the index of the first of these.

    Cost: on a CPU, by numpy, for 48 rows of 4096 an eighth of the time of `topk`.
    """
    if not _is_numpy(values):
        found = values.topk(count, dim=-1)
        return found.values, found.indices[:, :1]
    array = values.detach().numpy()
    first = array.shape[-1] - count
    listed = np.sort(np.partition(array, first)[:, first:])[:, ::-1].copy()
    return torch.from_numpy(listed), torch.from_numpy(array.argmax(axis=-1, keepdims=True))


def _is_numpy(values: torch.Tensor) -> bool:
    """Return whether numpy reads the values."""
    return values.device.type == "cpu" and values.dtype != torch.bfloat16


def largest_indices(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (R, count) int64, the indices of the largest of each row of (R, N) values, ascending, and (R, 1), the next largest."""
    if not _is_numpy(values):
        found = values.topk(count + 1, dim=-1)
        return found.indices[:, :-1].sort(dim=-1).values, found.values[:, -1:]
    first = values.shape[-1] - count
    order = torch.from_numpy(np.argpartition(values.detach().numpy(), first - 1)[:, first - 1 :])
    return order[:, 1:].sort(dim=-1).values, values.gather(-1, order[:, :1])


def inverse_cdf(logits: torch.Tensor, uniforms: torch.Tensor) -> Drawn:
    """Return the first index of each row at which the cumulative distribution exceeds the random number of the row.

    Args:
        logits: (R, N), minus infinity for what cannot be drawn.
        uniforms: (R,) float64 in [0, 1).

    Replaces the plain form, `searchsorted` in the cumulative sum of the whole row: first the block is found, then the index
    in it, and only the sums of blocks and inside of that block are computed, in float64.

    Cost: a softmax and one more pass.
    """
    probs = logits.softmax(dim=-1)
    if logits.shape[-1] <= _SMALL:
        cumulative = exact(probs).cumsum(dim=-1)
        found = _first_above(cumulative, _target(cumulative, uniforms)).to(probs.device)
    else:
        found = _found_in_blocks(probs, uniforms)
    return found[:, 0], probs.gather(-1, found)[:, 0].log()


def _found_in_blocks(probs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return (R, 1) indices, as `inverse_cdf` does."""
    sums = exact(_reduced(probs, _SIZE, torch.sum)).cumsum(dim=-1)
    target = _target(sums, uniforms)
    block = _first_above(sums, target)
    before = torch.where(block > 0, sums.gather(-1, (block - 1).clamp_min(0)), 0)
    at = _indices(block.to(probs.device), _SIZE)
    inside = exact(_gathered(probs, at, 0)).cumsum(dim=-1)
    index = _first_above(inside, target - before)
    return at.gather(-1, index.to(at.device)).clamp_max(probs.shape[-1] - 1)


def _target(cumulative: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Return (R, 1): the random number of each row, times the row's total."""
    return on_device(uniforms, cumulative.device)[:, None] * cumulative[:, -1:]


def _first_above(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return (R, 1): the first index of each row whose sum is above the target; never one that adds nothing."""
    total = cumulative[:, -1:]
    # Rounding could lift the target to the total itself, behind the last index that adds something.
    target = torch.minimum(target, torch.nextafter(total, total.new_zeros(())))
    return torch.searchsorted(cumulative, target, right=True).clamp_max(cumulative.shape[-1] - 1)


def not_below(logits: torch.Tensor, floor: torch.Tensor, most: torch.Tensor | None = None) -> torch.Tensor:
    """Return (R, N) logits of the same distribution with minus infinity for those below the (R, 1) floor of their row.

    They are shifted by the floor, which takes two plain passes: filling under a mask that cannot be predicted takes
    eight times as long on a CPU. `most` is the largest of each row, (R, 1), if that is known.
    """
    # So far below the largest the probability is 0; and a floor of minus infinity has nothing to shift by.
    most = logits.amax(dim=-1, keepdim=True) if most is None else most
    floor = torch.maximum(floor, most - _DEEPEST)
    return torch.threshold_(logits - floor, -torch.finfo(logits.dtype).tiny, -torch.inf)


def exact(tensor: torch.Tensor) -> torch.Tensor:
    """Return float64 numbers, on the same device where that has them."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()


def on_device(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return numbers on a device; the host does not wait for those of its own."""
    if numbers.device == device:
        return numbers
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers.to(device)


def _reduced(values: torch.Tensor, size: int, reduce: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Return (R, ceil(N / size)): `reduce`, such as `torch.amax`, of every block of (R, N) values."""
    whole = values.shape[-1] // size * size
    parts = [reduce(values[:, whole:], -1, keepdim=True)] if whole < values.shape[-1] else []
    if whole:
        parts.insert(0, reduce(values[:, :whole].view(len(values), -1, size), -1))
    return torch.cat(parts, dim=-1)


def _indices(blocks: torch.Tensor, size: int) -> torch.Tensor:
    """Return (R, B * size) int64: the indices of all values of (R, B) blocks; beyond the end where the last block is shorter."""
    return (blocks[..., None] * size + torch.arange(size, device=blocks.device)).flatten(1)


def _gathered(values: torch.Tensor, at: torch.Tensor, beyond: float) -> torch.Tensor:
    """Return the values of (R, N) at (R, M) indices, and `beyond` for indices beyond the end."""
    last = values.shape[-1] - 1
    return values.gather(-1, at.clamp_max(last)).masked_fill(at > last, beyond)


class TopBlocks:
    """The blocks with the largest logits of r rows, on which truncation warpers work one after the other.

    A warper that excludes tokens raises the *floor*, the smallest logit that is kept, so tokens of equal probability are kept or
    excluded together. A row whose floor may be outside of the blocks is *in doubt*; the caller processes the whole row.

    Attributes:
        logits: (r, M), in the order of the ids, among them the largest.
        listed: (r, n), the n largest in descending order.
        floor: (r, 1); None if nothing was excluded yet.
    """

    __slots__ = ("_divisor", "_doubts", "_largest_at", "_outside", "_rows", "_token_ids", "floor", "listed", "logits")

    def __init__(self, logits: torch.Tensor, blocks: int, num_listed: int) -> None:
        """Select the blocks of (r, V) logits with the largest maxima: the `blocks` largest logits are in them.

        Cost: one pass over the logits, and a sort of the indices of the blocks.
        """
        self.logits = self._rows = logits
        self.floor: torch.Tensor | None = None
        self._token_ids: torch.Tensor | None = None  # (r, M) int64; None if all tokens are here
        self._outside: torch.Tensor | None = None  # (r, 1), the largest logit that is not here
        self._divisor: torch.Tensor | None = None  # (r, 1), what `_rows` are yet to be divided by
        self._doubts: torch.Tensor | None = None  # (r, 1) bool
        if 2 * blocks * _TOP_SIZE <= logits.shape[-1]:
            chosen, self._outside = largest_indices(_reduced(logits, _TOP_SIZE, torch.amax), blocks)
            at = _indices(chosen, _TOP_SIZE)
            self.logits = _gathered(logits, at, -torch.inf)
            self._token_ids = at.clamp_max(logits.shape[-1] - 1)
        self.listed, self._largest_at = largest(self.logits, min(num_listed, self.logits.shape[-1]))

    def divide(self, divisor: torch.Tensor) -> None:
        """Divide the logits by (r, 1) numbers above 0."""
        divisor = divisor.to(self.logits)
        self.logits, self.listed = self.logits / divisor, self.listed / divisor
        self._divisor = divisor if self._divisor is None else self._divisor * divisor
        self.floor = None if self.floor is None else self.floor / divisor
        self._outside = None if self._outside is None else self._outside / divisor

    def raise_floor(self, floor: torch.Tensor) -> None:
        """Exclude what is below the (r, 1) floors, in addition to what was excluded before."""
        self.floor = floor if self.floor is None else torch.maximum(self.floor, floor)

    def doubt(self, rows: torch.Tensor) -> None:
        """Mark rows, (r, 1) bool, as in doubt."""
        self._doubts = rows if self._doubts is None else self._doubts | rows

    def doubt_if_excluded(self) -> None:
        """Mark rows in which a kept token may be outside of the blocks; for warpers that sum up what is kept."""
        if self.floor is not None and self._outside is not None:
            self.doubt((self._outside >= self.floor) & (self._outside > -torch.inf))

    def largest_prob(self) -> torch.Tensor:
        """Return (r, 1): the largest probability, among what was kept so far.

        Cost: a softmax of whole rows if nothing was excluded yet, else one of the blocks.
        """
        if self.floor is not None:
            return self._kept(self.floor).softmax(dim=-1).gather(-1, self._largest_at)
        rows = self._rows if self._divisor is None else self._rows / self._divisor
        return rows.softmax(dim=-1).gather(-1, self._ids_of(self._largest_at))

    def draw(self, uniforms: torch.Tensor) -> Drawn:
        """Draw one of the kept tokens of each row with (r,) random numbers; the result is meaningless for rows in doubt."""
        assert self.floor is not None
        found, logprobs = inverse_cdf(self._kept(self.floor), uniforms)
        return self._ids_of(found[:, None])[:, 0], logprobs

    def _kept(self, floor: torch.Tensor) -> torch.Tensor:
        return not_below(self.logits, floor, self.listed[:, :1])

    def in_doubt(self) -> torch.Tensor | None:
        """Return (r,) bool, which rows are in doubt; None for none."""
        self.doubt_if_excluded()
        return None if self._doubts is None else self._doubts[:, 0]

    def _ids_of(self, indices: torch.Tensor) -> torch.Tensor:
        return indices if self._token_ids is None else self._token_ids.gather(-1, indices)
