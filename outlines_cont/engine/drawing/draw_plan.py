"""`DrawPlan`: groups the rows of a draw: standard samplers are one vectorised batch; users' samplers and warpers are called for their own
rows, and checked. If a call fails, its rows are drawn one by one, so that an error ends its own row only. `DrawPlans`: a cache of 64 plans.
`draw_with`: draws rows with one sampler. `drawing_of`: checks a sampler, finds what it needs; `tempered`: the same at another temperature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from traceback import clear_frames

import torch

from outlines_cont.engine.drawing.drawing import Drawing
from outlines_cont.errors import OptionError, SamplerError
from outlines_cont.sampling.batch import Counts, SamplerBatch, params_of
from outlines_cont.sampling.params import Sampler, at_temperature
from outlines_cont.user_code import shielded

_NUM_PLANS = 64


def drawing_of(sampler: Sampler) -> Drawing:
    """Return the sampler with what it needs for a draw.

    Raises:
        OptionError: it does not draw token by token.
    """
    missing = [name for name in ("needs_random", "needs_counts", "sample") if not hasattr(sampler, name)]
    if missing:
        raise OptionError(
            "expected a sampler with `num_samples`, `needs_random`, `needs_counts` and `sample`, "
            f"got {sampler!r}, which has no `{missing[0]}`. See `samplers.Sampler`.",
            "sampler",
        )
    return Drawing(sampler, bool(sampler.needs_random), bool(sampler.needs_counts), params_of(sampler))


def tempered(drawing: Drawing, temperature: float) -> Drawing:
    """Return the same at another temperature; if the sampler cannot change it, a sampler whose draws raise its error."""
    try:
        return drawing_of(shielded(at_temperature, drawing.sampler, temperature))
    except Exception as error:
        return drawing_of(_Refusing(error))


@dataclass(frozen=True, slots=True)
class _Refusing:
    """A sampler whose draws raise `error`."""

    error: Exception
    num_samples: int | None = None
    needs_random: bool = False
    needs_counts: bool = False

    def sample(
        self, logits: torch.Tensor, uniforms: torch.Tensor | None, counts: Counts | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raise self.error


@dataclass(frozen=True, slots=True)
class BatchDraw:
    """The draws of R rows."""

    token_ids: torch.Tensor  # (R,) int64; 0 for a row that failed
    logprobs: (
        torch.Tensor
    )  # (R,), masked and warped; not finite for a row without a distribution, plus infinity for one in doubt
    errors: dict[int, Exception] = field(default_factory=dict)  # by the index of the row


class DrawPlan:
    """Draws the tokens of R rows with given samplers; to be reused as long as these are the same.

    Attributes:
        drawings: the samplers.
        needs_random, needs_counts: whether some draw takes a random number, or depends on the tokens of its row.
        takes_largest: whether all take the most probable token, as the logits are.
    """

    def __init__(self, drawings: Sequence[Drawing]) -> None:
        self.drawings = drawings
        self.needs_random = any(drawing.needs_random for drawing in drawings)
        self.needs_counts = any(drawing.needs_counts for drawing in drawings)
        self.takes_largest = all(drawing.takes_largest for drawing in drawings)

    @cached_property
    def _parts(self) -> list[_Part]:
        kinds: dict[object, list[int]] = {}
        for row, drawing in enumerate(self.drawings):
            kinds.setdefault(drawing.kind, []).append(row)
        return [_Part(rows, [self.drawings[row] for row in rows]) for rows in kinds.values()]

    def draw(
        self, masked: torch.Tensor, uniforms: torch.Tensor | None, counts: Counts | None, *, marks_doubts: bool = False
    ) -> BatchDraw:
        """Draw a token for every row from its masked (R, V) logits; the arguments are those of `SamplerBatch.sample`."""
        return _drawn(self._parts, masked, uniforms, counts, marks_doubts)


def draw_with(
    drawing: Drawing, masked: torch.Tensor, uniforms: Sequence[float] | None, counts: Counts | None
) -> BatchDraw:
    """Return the draws of one sampler from masked (R, V) logits; raise the first error of the sampler."""
    numbers = None if uniforms is None else torch.tensor(uniforms, dtype=torch.float64, device="cpu")
    drawn = DrawPlan([drawing] * len(masked)).draw(masked, numbers, counts)
    for error in drawn.errors.values():
        raise error
    return drawn


class DrawPlans:
    """A cache of 64 plans by their drawings: with draws ahead of drafts, the number of draws changes in every step."""

    def __init__(self) -> None:
        self._plans: dict[tuple[int, ...], DrawPlan] = {}

    def of(self, drawings: Sequence[Drawing]) -> DrawPlan:
        """Return the plan for these drawings: an earlier one, if it was made of the same objects."""
        key = tuple(map(id, drawings))  # unique, as the plan keeps the objects alive
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _NUM_PLANS:
                self._plans.clear()
            plan = self._plans[key] = DrawPlan(drawings)
        return plan


class _Part:
    """The rows of one kind, at the indices `rows`, which are drawn together."""

    def __init__(self, rows: list[int], drawings: Sequence[Drawing]) -> None:
        self.rows = rows
        self._drawings = drawings
        self._is_standard = drawings[0].kind == "standard"
        params = [drawing.params for drawing in drawings if drawing.params is not None]
        self._sampler = SamplerBatch(params) if params else drawings[0].sampler

    def draw(
        self, masked: torch.Tensor, uniforms: torch.Tensor | None, counts: Counts | None, marks_doubts: bool
    ) -> BatchDraw:
        """Draw a token for each row of the part; the arguments are those of these rows."""
        if isinstance(self._sampler, SamplerBatch) and self._is_standard:
            return BatchDraw(*self._sampler.sample(masked, uniforms, counts, marks_doubts=marks_doubts))
        # A user's sampler is not called for a row without a distribution.
        if masked.amax(dim=-1).isfinite().all():
            try:
                return BatchDraw(*self._checked(masked, uniforms, counts))
            except Exception as error:
                _release(error)
                if len(masked) == 1:
                    return BatchDraw(masked.new_zeros(1, dtype=torch.int64), masked.new_zeros(1), {0: error})
        if len(masked) == 1:
            return BatchDraw(masked.new_zeros(1, dtype=torch.int64), masked.new_full((1,), torch.nan))
        alone = [_Part([row], [drawing]) for row, drawing in enumerate(self._drawings)]
        return _drawn(alone, masked, uniforms, counts, marks_doubts)

    def _checked(
        self, masked: torch.Tensor, uniforms: torch.Tensor | None, counts: Counts | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        uniforms = uniforms if self._drawings[0].needs_random else None
        counts = counts if any(drawing.needs_counts for drawing in self._drawings) else None
        # A copy, as a user's code may write into it.
        drawn = shielded(self._sampler.sample, masked.clone(), uniforms, counts)
        return _checked_draw(drawn, masked, self._drawings[0].sampler)


def _drawn(
    parts: Sequence[_Part],
    masked: torch.Tensor,
    uniforms: torch.Tensor | None,
    counts: Counts | None,
    marks_doubts: bool,
) -> BatchDraw:
    """Return the draws of several parts as one."""
    if len(parts) == 1:
        return parts[0].draw(masked, uniforms, counts, marks_doubts)
    token_ids = torch.zeros(len(masked), dtype=torch.int64, device=masked.device)
    logprobs = torch.zeros(len(masked), dtype=masked.dtype, device=masked.device)
    errors: dict[int, Exception] = {}
    for part in parts:
        rows = torch.tensor(part.rows, device="cpu")
        drawn = part.draw(
            masked[rows],
            None if uniforms is None else uniforms[rows],
            None if counts is None else [counts[row] for row in part.rows],
            marks_doubts,
        )
        token_ids[rows], logprobs[rows] = drawn.token_ids, drawn.logprobs
        errors.update({part.rows[at]: error for at, error in drawn.errors.items()})
    return BatchDraw(token_ids, logprobs, errors)


def _release(error: Exception) -> None:
    """Release the logits that the frames of an error refer to, as a state may keep the error."""
    if error.__traceback__ is not None:
        clear_frames(error.__traceback__)
        error.__traceback__ = error.__traceback__.tb_next  # without the frame that caught it, which still runs


def _checked_draw(drawn: object, masked: torch.Tensor, sampler: Sampler) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the draw of a sampler from (r, V) logits as (r,) int64 and (r,) of their type, on their device; else `SamplerError`."""
    if not isinstance(drawn, tuple | list) or len(drawn) != 2 or not all(isinstance(x, torch.Tensor) for x in drawn):
        raise SamplerError(f"expected {_EXPECTED.format(len(masked), sampler)}, got {drawn!r}")
    token_ids, logprobs = drawn
    for tensor, is_right in ((token_ids, token_ids.dtype in _INTS), (logprobs, logprobs.is_floating_point())):
        if tensor.shape != (len(masked),) or not is_right:
            shape, dtype = tuple(tensor.shape), tensor.dtype
            raise SamplerError(f"expected {_EXPECTED.format(len(masked), sampler)}, got shape {shape} of {dtype}")
    token_ids, logprobs = token_ids.to(masked.device, torch.int64), logprobs.to(masked)
    beyond = [token_id for token_id in token_ids.tolist() if not 0 <= token_id < masked.shape[-1]]
    if beyond:
        raise SamplerError(f"expected token ids from 0 to {masked.shape[-1] - 1} from {sampler!r}, got {beyond[0]}")
    is_allowed = masked.gather(-1, token_ids[:, None])[:, 0] > -torch.inf
    if not is_allowed.all():
        raise SamplerError(
            f"expected a token that the mask allows from {sampler!r}, got {int(token_ids[~is_allowed][0])}, whose logit is minus "
            "infinity. Draw among the tokens with finite logits."
        )
    if not logprobs.isfinite().all():
        raise SamplerError(f"expected finite log-probabilities from {sampler!r}, got {logprobs.tolist()}")
    return token_ids, logprobs


_INTS = (torch.int64, torch.int32, torch.int16, torch.uint8)
_EXPECTED = "({0},) token ids of int64 and ({0},) log-probabilities from `sample` of {1!r}"
