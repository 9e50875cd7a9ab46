"""`GivenPrompts`, `SeenPrompts`: find where the prompts of rows end and their text begins, as a logits processor gets whole rows. Prompts
are given, or inferred: rows are the next step of a call if each is one of the step before with one more token (and the constraint does not
refuse them all), else new prompts. Where the two cannot be distinguished, as in assisted generation, `AmbiguousPrompt` is raised.
`SeenBeams` takes the rows of one prompt one by one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from outlines_cont.checks import is_int
from outlines_cont.errors import AmbiguousPrompt, OptionError

Rows = NDArray[np.int64]
IsRefused = Callable[[NDArray[np.int64]], bool]

_NUM_SEEN = 1024
_ADVICE = (
    "Give the inputs of the call: `model.generate(**inputs, logits_processor=[processor.of(inputs)])`, or "
    "`prefix_allowed_tokens_fn=allowed.of(inputs)`."
)


class Prompts(Protocol):
    """Finds the column at which the generated text of rows begins."""

    def start(self, rows: Rows) -> int:
        """Return the number of columns of (B, T) int64 rows that belong to the prompts."""


class GivenPrompts:
    """Prompts that the user has given, with their padding, or only their length.

    Args:
        inputs: what `tokenizer(prompts, return_tensors="pt")` returns, the `input_ids` in it, or their number of columns.
    """

    def __init__(self, inputs: Any) -> None:
        self._rows = _rows_of(inputs)
        self._length = int(inputs) if self._rows is None else self._rows.shape[1]
        self._known: set[bytes] = set() if self._rows is None else {row.tobytes() for row in self._rows}

    def start(self, rows: Rows) -> int:
        """Return the length of the prompts, padding included.

        Raises:
            AmbiguousPrompt: the rows do not begin with these prompts.
        """
        if rows.shape[1] < self._length:
            raise AmbiguousPrompt(
                f"expected rows that begin with a prompt of {self._length} tokens, padding included, got rows of {rows.shape[1]}. "
                "Make one for these prompts: `processor.of(inputs)`."
            )
        if self._rows is not None:
            self._check(rows[:, : self._length], self._rows)
        return self._length

    def _check(self, begun: Rows, prompts: Rows) -> None:
        """Raise for rows that do not begin with one of the prompts. Cost: a look at every id; `generate` repeats prompts in their order."""
        copies = len(begun) // len(prompts)
        if copies * len(prompts) == len(begun) and np.array_equal(begun, np.repeat(prompts, copies, axis=0)):
            return
        odd = next((i for i, row in enumerate(begun) if row.tobytes() not in self._known), None)
        if odd is not None:
            raise AmbiguousPrompt(
                f"expected rows that begin with the prompts that `of` was given, got another one in row {odd}. "
                "Make one for each call: `model.generate(**inputs, logits_processor=[processor.of(inputs)])`."
            )


class SeenPrompts:
    """Finds where prompts end by comparing the rows of successive steps.

    Args:
        is_refused: whether the constraint refuses the last of the (T,) ids of a text: it neither continues it nor ends it.
    """

    def __init__(self, is_refused: IsRefused) -> None:
        self._is_refused = is_refused
        self._length = 0
        self._width = -1
        self._last: set[bytes] = set()
        # The row of this call at each step, and its prompt; also those of the call before where it is not certain that this is a new one.
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._prompt = b""

    def start(self, rows: Rows) -> int:
        """Return where the texts begin: the width of the rows, if they are prompts of a new call.

        Raises:
            AmbiguousPrompt: it cannot be determined.
        """
        if not self._is_continued(rows):
            self._begin(rows)
        self._width = rows.shape[1]
        self._last = {row.tobytes() for row in rows}
        self._note(rows)
        return self._length

    def _is_continued(self, rows: Rows) -> bool:
        """Return whether rows are those of the last step again, or the next step after it."""
        width = rows.shape[1]
        if width == self._width:
            return all(row.tobytes() in self._last for row in rows)
        if width != self._width + 1 or not all(row[:-1].tobytes() in self._last for row in rows):
            return False
        return not all(self._is_refused(row[self._length :]) for row in rows)

    def _begin(self, rows: Rows) -> None:
        """Take rows for prompts.

        A call that writes one row may verify drafts of the next tokens and rewind (assisted generation), so that a row which continues an
        earlier one of the call is a step or a new prompt. Of several rows either all are continued or none; a beam search returns rows that
        have ended earlier together with some that have not.
        """
        width = rows.shape[1]
        is_alone = len(rows) == 1 and width > 0
        if is_alone and _digest(rows[0]) == self._prompt:
            return  # the prompt of this call once more
        rewinds = is_alone and (_digest(rows[0, :-1]) in self._seen or _digest(rows[0]) in self._seen)
        if rewinds and width != self._width + 1:
            raise AmbiguousPrompt(
                f"expected the next step of the call before, or prompts that do not begin like its row, got a row of {width} tokens that "
                f"continues an earlier position of it: it may be a step of assisted generation, or a new prompt. {_ADVICE}"
            )
        steps = [i for i, row in enumerate(rows) if width == self._width + 1 and row[:-1].tobytes() in self._last]
        if 0 < len(steps) < len(rows):
            raise AmbiguousPrompt(
                f"expected rows that all continue those of the step before, or none that does, got {len(rows)} rows of which "
                f"{len(steps)} do, such as row {steps[0]}. {_ADVICE}"
            )
        if not rewinds:
            self._seen.clear()
        self._length = width
        self._prompt = _digest(rows[0]) if is_alone else b""

    def _note(self, rows: Rows) -> None:
        """Remember the row of a step, if it is the only one."""
        if len(rows) == 1:
            self._seen[_digest(rows[0])] = None
            if len(self._seen) > _NUM_SEEN:
                self._seen.popitem(last=False)


class SeenBeams(SeenPrompts):
    """`SeenPrompts` for rows of one prompt that arrive one by one: all beams of a step, then those of the next.

    There are as many beams as rows with the prompt alone.
    """

    def __init__(self, is_refused: IsRefused) -> None:
        super().__init__(lambda token_ids: self._num_beams == 1 and is_refused(token_ids))
        self._before: set[bytes] = set()
        self._num_beams = 1
        self._count = 0

    def start(self, rows: Rows) -> int:
        """Return where the text of (1, T) begins; see `SeenPrompts.start`."""
        width, row = rows.shape[1], rows[0].tobytes()
        if width == self._width and row in self._last:
            self._num_beams += width == self._length
            return self._length
        if width == self._width and self._count < self._num_beams and rows[0, :-1].tobytes() in self._before:
            self._count += 1
            self._last.add(row)
            self._note(rows)
            return self._length
        last = self._last
        length = super().start(rows)
        self._before, self._count = last, 1
        if width == length:
            self._before, self._num_beams = set(), 1
        return length


def _digest(row: NDArray[np.int64]) -> bytes:
    return blake2b(row.tobytes(), digest_size=16).digest()


def _rows_of(inputs: Any) -> Rows | None:
    """Return (B, T) int64 ids, None for a mere length."""
    if isinstance(inputs, Mapping) or hasattr(inputs, "input_ids"):
        inputs = inputs["input_ids"] if isinstance(inputs, Mapping) else inputs.input_ids
    if is_int(inputs, 0):
        return None
    if isinstance(inputs, torch.Tensor):
        inputs = inputs.detach().cpu().numpy()
    if isinstance(inputs, Sequence | np.ndarray):
        try:
            rows = np.asarray(inputs)
        except ValueError:  # lists of different lengths
            rows = np.zeros(0)
        if rows.ndim == 1 and rows.dtype.kind == "i":
            rows = rows[None]
        if rows.ndim == 2 and rows.dtype.kind == "i":
            return np.ascontiguousarray(rows, np.int64)
    raise OptionError(
        "expected the inputs of a call, as `tokenizer(prompts, return_tensors='pt', padding=True)` returns them, their `input_ids`, or "
        f"their number of columns, got {type(inputs).__name__}. Rows have one length: pad them on the left.",
        "inputs",
    )
