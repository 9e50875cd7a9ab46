"""`tolerance`: the largest error of a probe's logits that rounding explains, in units of their spread: a constant for each float type, that
of half precision for float32 where PyTorch may multiply with fewer bits.

`Capabilities`: which operations on the KV cache leave the logits of a model unchanged: cropping, left-padded batches, masked gaps,
shared prefixes, reuse of prefixes. Decided by the config, or by comparing the logits of a few short forwards of random ids within a
tolerance (`probe`). Refused are encoder-decoders, models that are not causal, and recurrent ones whose copied cache does not continue
exactly.

Layers that drop old tokens (sliding windows) get a cache that keeps all. Errors are in units of the standard deviation of the logits.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from traceback import clear_frames
from typing import Any, NoReturn, cast

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from outlines_cont.errors import UnsupportedModel, shortened
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import KVBatch
from outlines_cont.kv.paged.paging import Paging
from outlines_cont.kv.paged.pool import Pool
from outlines_cont.kv.serial import RecurrentBatch
from outlines_cont.kv.share import Sharing
from outlines_cont.kv.store import KVStore
from outlines_cont.models.versions import untested

_TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
# Measured on an H100: 32 layers of width 4,096 in bfloat16 are off by 0.26 of the spread of the logits, at the worst of 32,000 tokens.
# Models of eight layers and more that do not see a prefix, or its first token, are off by 4 and more.
_HALF_TOLERANCE = 0.6


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest error of a probe, in units of the spread of the logits, that rounding explains."""
    return _HALF_TOLERANCE if _has_fewer_bits(dtype) else _TOLERANCE.get(dtype, _HALF_TOLERANCE)


def _has_fewer_bits(dtype: torch.dtype) -> bool:
    """Return whether PyTorch may multiply float32 with as few bits as those of half precision, as a GPU does if it is allowed to."""
    if dtype != torch.float32:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch 2.9 warns of its newer options even where this one is only read
        return torch.get_float32_matmul_precision() != "highest"


# How many single tokens a recurrent model is fed to see whether its steps lose something, and what may be lost on a CPU in float32 or
# float64 (their states are float32): families that are exact are off by 1e-5 at most, with the weights of the tests.
_STEPS = 12
_STEPS_TOLERANCE = 1e-4
# Of a causal model rounding alone remains, as the shape of the forward is the same. Tiny random encoders are off by 0.007 and more;
# modules of other packages may quantise activations by the largest of all tokens.
_SEES_NOTHING_LATER = 1e-3
_SEES_NOTHING_LATER_ROUGHLY = 0.05
# Activations that are quantised by the chunk are off by more than rounding.
_QUANTISED = 0.1

# The bounds of our own forward, in units in the last place. Measured on a CPU with 8 families: of a real model in bfloat16 the largest
# error is 29 units, the root of the mean square 7; of random networks of 24 layers with large weights, 133 and 21, and 1.8e-5 in float32.
# A forward whose shared prefixes are wrong is off by 100 units and more in the mean square.
_LARGEST_ERROR = 16
_MEAN_ERROR = 24

# The unit in the last place up to which texts are equal in practice.
_EXACT_ENOUGH = 1e-5

# Config attributes that make a mask count columns instead of positions, and families that hide such a window.
_WINDOW_ATTRIBUTES = ("attention_chunk_size", "alibi", "attention_types", "window_size", "local_attention_window")
# Kinds of rotary embedding whose angles change when a text grows longer.
_LENGTH_DEPENDENT_ROPES = {"dynamic", "longrope", "su"}

# What a model that excludes tokens without an infinity gives them at most: the least float16.
_EXCLUDED = -6e4

_KNOWN_LAYERS = {DynamicLayer.__name__, DynamicSlidingWindowLayer.__name__, "DummyLayer"}
_ADVICE = "Use a decoder-only model whose layers are attention with keys and values."


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a model supports an operation, and how that is known: a measured error or a reason.

    Attributes:
        holds: whether it does.
        why: how that is known.
        cause: the error of the network or its processor that is the reason, with its traceback; None if there was none.
    """

    holds: bool
    why: str
    cause: Exception | None = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.holds


def raised(what: str, failure: Exception) -> Finding:
    """Return that an operation is not supported, as it raised an error; tensors that its traceback refers to are dropped."""
    inner = failure.__traceback__ and failure.__traceback__.tb_next
    clear_frames(inner)
    return Finding(False, f"{what} raised {said(failure)}", failure.with_traceback(inner))


def said(failure: BaseException) -> str:
    """Return type and message of an error in one line of at most 400 characters, such as `TypeError: missing argument`."""
    return shortened(" ".join(f"{type(failure).__name__}: {failure}".split()), 400).rstrip(":.")


NO_IMAGES = Finding(False, "its network takes no images: its forward has no `pixel_values`")
_NAMES = ("crop", "stack", "skip", "branch", "reuse", "fused", "exact", "half", "images")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Which operations on the KV cache of a model leave its logits unchanged. Without one, tokens are recomputed or copied.

    Attributes:
        crop: the end of a row may be cut off; else rows are replayed from snapshots.
        stack: rows of different lengths may be left-padded into one batch; else they run one by one.
        skip: masked columns may be between the tokens of a row; else ragged rows are packed after each step.
        branch: rows may attend to a shared prefix in place; else each has a copy.
        reuse: keys and values of one text may be used for another with the same beginning; see `model.prefix_cache`.
        fused: the layers run by our own forward, over the same weights (`models.fused`), now; else by that of transformers.
        exact: the logits after a text depend on it alone, bit by bit; else on what else is in a batch, too, and on how the text was cut
            into chunks, up to rounding.
        half: of a model on a CPU, the processor multiplies bfloat16 by instructions of its own, so that `dtype="auto"` opens models in it;
            None on other devices.
        images: prompts may have images (`model.see`), behind which all that is above holds.
    """

    crop: Finding
    stack: Finding
    skip: Finding
    branch: Finding
    reuse: Finding
    fused: Finding
    exact: Finding
    images: Finding = NO_IMAGES
    half: Finding | None = None

    def __str__(self) -> str:
        lines: list[tuple[str, Finding | None]] = [(name, getattr(self, name)) for name in _NAMES]
        known = [(name, finding) for name, finding in lines if finding is not None]
        return "\n".join(f"{name:<7}{'yes' if finding else 'no':<5}{finding.why}" for name, finding in known)


def half_precision() -> Finding:
    """Return whether this processor multiplies bfloat16 by instructions of its own, by the names of its instruction sets."""
    sets = {"avx512_bf16": torch.cpu._is_avx512_bf16_supported(), "amx": torch.cpu._is_amx_tile_supported()}
    found = [name for name, is_there in sets.items() if is_there]
    if found:
        return Finding(
            True, f"the processor multiplies bfloat16 ({', '.join(found)}), in which `dtype='auto'` opens models"
        )
    why = "the processor has no instructions that multiply bfloat16 (avx512_bf16, amx): `dtype='auto'` opens models in float32"
    return Finding(False, why)


def is_recurrent(model: PreTrainedModel) -> bool:
    """Return whether some layer of `model` has other state than keys and values.

    Raises `UnsupportedModel` if it is not a decoder, or has its own kind of cache.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise UnsupportedModel(f"expected a decoder-only model, got {name}, an encoder-decoder. {_ADVICE}{untested()}")
    try:
        layers = DynamicCache(config=model.config).layers
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise UnsupportedModel(f"the cache of {name} is unknown ({said(error)}). {_ADVICE}{untested()}") from error
    # Exact types: layers with a recurrent state derive from DynamicLayer.
    known = {type(layer).__name__ for layer in layers} <= _KNOWN_LAYERS
    return not known or bool(getattr(model, "_is_stateful", False))


def check_recurrent(network: PreTrainedModel, model: LanguageModel) -> None:
    """Raise `UnsupportedModel` unless feeding chunks and single tokens after a copied cache gives the logits of one forward of all tokens.

    What a step loses, the next ones carry on, so a dozen single tokens are fed. `model` runs the network. Cost: 16 forwards, of at
    most 24 ids, 12 of them of one.
    """
    (ids,) = _random_ids(int(network.config.get_text_config(decoder=True).vocab_size), 12 + _STEPS)
    name = type(network).__name__

    def fed(batch: RecurrentBatch, start: int, stop: int, first: int | None = None) -> torch.Tensor:
        """(n, V) logits after tokens `start` to `stop`, from the one at `first` on; by default of the last alone."""
        wanted = range((stop - 1 if first is None else first) - start, stop - start)
        return batch.feed([ids[start:stop]], [[*wanted]]).logits[0]

    try:
        whole = fed(RecurrentBatch(model, [None]), 0, len(ids), 11)
        begun = RecurrentBatch(model, [None])
        fed(begun, 0, 6)
        shares = begun.release_all()
        batch, other = RecurrentBatch(model, shares), RecurrentBatch(model, shares)
        fed(other, 6, 9)
        found = [fed(batch, 6, 12), *(fed(batch, at, at + 1) for at in range(12, len(ids)))]
        error = max(relative_error(one[0], line) for one, line in zip(found, whole, strict=True))
    except Exception as failure:  # any error of a model that does not support a cache in chunks
        _raise_why_not_run(network, ids[:6], failure)
    if not error < _recurrent_tolerance(model):
        raise UnsupportedModel(
            f"expected {name} to have the same logits in chunks and by single tokens as in one forward, got an error of {error:.2g} "
            f"times their spread: its cache is not exact in this version of transformers. {_ADVICE}{untested()}"
        )


def _recurrent_tolerance(model: LanguageModel) -> float:
    bound = tolerance(model.dtype)
    if bound == _HALF_TOLERANCE:
        return bound
    # Kernels of a GPU may multiply with fewer bits inside of such a layer.
    return _STEPS_TOLERANCE if model.device.type == "cpu" else _TOLERANCE[torch.float32]


def _is_precise(network: PreTrainedModel, dtype: torch.dtype) -> bool:
    """Return whether a network multiplies with the bits of float32 or more, and has no modules that may round to fewer."""
    homes = {type(module).__module__ for module in network.modules()}
    is_plain = all(home.startswith(("torch.nn.modules.", "transformers.")) for home in homes)
    return is_plain and dtype in (torch.float32, torch.float64) and not _has_fewer_bits(dtype)


@torch.inference_mode()
def check_causal(network: PreTrainedModel, model: LanguageModel, plain: Forward) -> None:
    """Raise `UnsupportedModel` unless the logits of a token depend on the tokens before it alone, go on from a cache, and are those of a
    forward that is given the ids alone: some networks have other positions than those that count tokens from 0 on.

    `plain` runs the network of `model`. Cost: 5 forwards of at most 13 ids.
    """

    def fed(*chunks: list[int]) -> torch.Tensor:
        """(2, V) logits after the 9th token and after the last."""
        batch = KVBatch(cast(LanguageModel, _Probed(model, plain)), [None])
        lines = [batch.feed([chunk], [range(len(chunk))]).logits[0] for chunk in chunks]
        return torch.cat(lines)[[8, -1]]

    ids, others = _random_ids(int(network.config.get_text_config(decoder=True).vocab_size), 13, 4)
    name = type(network).__name__
    try:
        whole, other, continued = fed(ids), fed(ids[:9] + others), fed(ids[:9], ids[9:])
    except Exception as failure:  # any error of a model without a cache
        _raise_why_not_run(network, ids, failure)
    changed = relative_error(other[0], whole[0])
    if not changed < (_SEES_NOTHING_LATER if _is_precise(network, model.dtype) else _SEES_NOTHING_LATER_ROUGHLY):
        raise UnsupportedModel(
            f"expected a causal model, got {name}, whose logits change by {changed:.2g} times their spread with the tokens that follow. An "
            "encoder, such as BERT, needs `is_decoder=True` in its config; one whose prompt is bidirectional, such as PaliGemma, cannot be "
            f"continued exactly. {_ADVICE}{untested()}"
        )
    bound = max(tolerance(model.dtype), _QUANTISED)
    alone = None
    with suppress(Exception):  # of a forward that needs a mask, positions or a cache
        alone = _alone(network, ids)[[8, -1]]
    error = 0.0 if alone is None else relative_error(alone, whole)
    if not error < bound:
        raise UnsupportedModel(
            f"expected {name} to have the same logits with positions that count tokens from 0 on as with those that it computes from "
            f"ids alone, got an error of {error:.2g} times their spread. Its texts cannot be continued exactly.{untested()}"
        )
    error = relative_error(continued, whole)
    if not error < bound:
        raise UnsupportedModel(
            f"expected {name} to have the same logits in chunks as in one forward, got an error of {error:.2g} times their spread: it does "
            f"not read its cache. {_ADVICE}{untested()}"
        )


def _alone(network: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Return the (T, V) logits of a forward that is given nothing but ids, and keeps no cache."""
    options = {"use_cache": False} if "use_cache" in inspect.signature(network.forward).parameters else {}
    logits: torch.Tensor = network(input_ids=torch.tensor([ids], device=network.device), **options).logits[0]
    return logits.float() if logits.dtype != torch.float64 else logits


def _raise_why_not_run(network: PreTrainedModel, ids: list[int], failure: Exception) -> NoReturn:
    """Raise `UnsupportedModel` for a network that raised an error with a cache: because of it, or if it does so without one, too."""
    name, with_cache = type(network).__name__, said(failure)
    advice = (
        "It is raised by the code or the weights of the network, not by this package: `model(input_ids=...)` raises it."
    )
    try:
        _alone(network, ids)
        without = "it runs"
    except Exception as alone:  # any error of any network
        without = said(alone)
    if without == with_cache:
        raise UnsupportedModel(
            f"expected a network that runs, got {name}, whose forward of {len(ids)} tokens raises {with_cache}, with a cache and without "
            f"one. {advice}{untested()}"
        ) from failure
    raise UnsupportedModel(
        f"{name} cannot continue from its cache: its forward raises {with_cache}. If it is given ids alone: {without}. "
        f"{_ADVICE}{untested()}"
    ) from failure


NOT_IN_PLACE = Finding(False, "turned off by `deterministic=True`: the parts of a prefix would be summed apart")


def exactness(dtype: torch.dtype, deterministic: bool) -> Finding:
    """Return what equal means for the texts of a model: exactly, or up to the rounding of its float type."""
    if deterministic:
        return Finding(True, "`deterministic=True`: equal calls have equal logits, whatever else runs")
    name, unit = str(dtype).removeprefix("torch."), torch.finfo(dtype).eps
    if unit > _EXACT_ENOUGH:
        advice = "open it with dtype='float32' or `deterministic=True` where texts must be equal"
        return Finding(False, f"up to rounding: in {name} a text may change with what else runs; {advice}")
    return Finding(
        False, f"up to rounding: in {name} a text changes only where two tokens are equal to {unit:.0e} or so"
    )


@torch.inference_mode()
def is_invariant(config: Any, model: LanguageModel, own: Forward) -> bool:
    """Return whether a forward has, bit by bit, the same logits for texts in ragged batches and in chunks as for each text alone.

    Cost: 8 forwards, of at most 56 tokens.
    """
    ids = _random_ids(config.vocab_size, 37, 19)
    probed = _Probed(model, own, can_skip=not _has_window(config))

    def fed(rows: Sequence[list[int]], *cuts: int) -> list[torch.Tensor]:
        """(T, V) logits of each row, fed up to each cut."""
        batch, parts = (
            KVBatch(cast(LanguageModel, probed), [None] * len(rows)),
            [[torch.empty(0, device="cpu")] for _ in rows],
        )
        for start, stop in pairwise((0, *cuts, max(map(len, rows)))):
            chunks = [row[start:stop] for row in rows]
            found = batch.feed(chunks, [[*range(len(chunk))] for chunk in chunks])
            for i, chunk in enumerate(chunks):
                parts[i] += [found.logits[i, [found.columns[i][place] for place in range(len(chunk))]]] if chunk else []
        return [torch.cat(part[1:]) for part in parts]

    wanted = [fed([row])[0] for row in ids]
    ways = fed(ids), fed(ids[::-1], 5)[::-1], fed(ids, 1, 34)
    return all(torch.equal(one, other) for way in ways for one, other in zip(way, wanted, strict=True))


def probe(network: PreTrainedModel, model: LanguageModel, fused: Finding) -> Capabilities:
    """Return what `network` supports, by its config and by a few forwards of at most 13 random ids; `model` runs it, `fused` or not.

    Cost: 12 forwards, 20 to 100 ms with a tiny model.
    """
    exact = exactness(model.dtype, deterministic=False)
    if is_recurrent(network):
        no = Finding(False, "a recurrent state: what was fed cannot be taken out of it")
        return Capabilities(no, no, no, no, no, fused, exact)
    crop = Finding(True, "keys and values of every layer")
    config: Any = network.config.get_text_config(decoder=True)
    reuse = _reuse(config)
    if getattr(config, "attention_chunk_size", None):
        no = Finding(False, "attention in chunks of columns")
        return Capabilities(crop, no, no, no, reuse, fused, exact)
    bound = tolerance(model.dtype)
    stack, skip = _ragged(model, config.vocab_size, bound)
    if _has_window(config):
        # The probe is shorter than most windows, so it could not see the harm.
        no = Finding(False, "a window, or distances, that count columns")
        return Capabilities(crop, stack, no, no, reuse, fused, exact)
    attention = network.config._attn_implementation
    branch = Finding(False, f"attention {attention!r}; 'sdpa' is needed")
    if attention == "sdpa":
        branch = _branch(model, model.vocab_size, bound)
    return Capabilities(crop, stack, skip, branch, reuse, fused, exact)


def _reuse(config: Any) -> Finding:
    """Return whether keys and values of a prefix are the same in every text that begins with it."""
    ropes = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = {
        str(rope.get("rope_type", rope.get("type"))) for rope in (ropes, *ropes.values()) if isinstance(rope, dict)
    }
    odd = sorted(kinds & _LENGTH_DEPENDENT_ROPES)
    if odd:
        return Finding(False, f"rotary embedding {odd[0]!r}: its angles depend on the length of the text")
    return Finding(True, "keys and values depend only on the tokens before them")


def _measured(error: float, bound: float) -> Finding:
    return Finding(error < bound, f"measured: error {error:.1e} of the spread of the logits")


def _has_window(config: Any) -> bool:
    # A probe shorter than the window cannot see it, so windows are ruled out by the config.
    sliding = any(type(layer) is DynamicSlidingWindowLayer for layer in DynamicCache(config=config).layers)
    hidden = any(getattr(config, name, None) for name in (*_WINDOW_ATTRIBUTES, "sliding_window"))
    return sliding or hidden or config.model_type in ("gpt_neo", "mpt", "bloom")


Forward = Callable[..., torch.Tensor]
"""A function with the arguments of `LanguageModel.forward`."""


class _Probed:
    """A stand-in for a model that is being probed, with the capabilities that a `KVBatch` shall use, and any forward."""

    def __init__(
        self, model: LanguageModel, forward: Forward | None = None, *, can_skip: bool = True, can_branch: bool = False
    ) -> None:
        self.can_skip, self.can_branch = can_skip, can_branch
        self.device = model.device
        self.dtype = model.dtype
        self.forward = model.forward if forward is None else forward
        self.kv_store = KVStore()


@torch.inference_mode()
def compare(
    config: Any,
    model: LanguageModel,
    own: Forward,
    plain: Forward,
    *,
    can_branch: bool = True,
    pool: Pool | None = None,
) -> Finding:
    """Return whether our own forward, in rows that are ragged, cut, continued and forked, has the logits of the plain one of `model`, which
    reads each of these rows alone, in one chunk and without a cache that was filled before. Those of ours are in slots of `pool`, if given.

    The largest error may be a few units in the last place; where rounding adds up over many layers, the mean square may be more of them.

    Cost: 5 forwards of each, of at most 18 ids.
    """
    ids = _random_ids(config.vocab_size, 13, 7, 3, 2, 1)
    can_skip = not _has_window(config)
    can = {"can_skip": can_skip, "can_branch": can_skip and can_branch}
    probed = _Probed(model, own, **can)
    if pool is not None:
        probed.kv_store.paging = Paging(pool, probed.kv_store)
    try:
        found = _cut_and_forked(probed, ids)
        if pool is not None:
            found = torch.cat([found, _after_many(probed, config.vocab_size)])
    except Exception as failure:  # any error of a network that is not what its class says
        return raised("our own forward", failure)
    alone = _Probed(model, plain)
    wanted = _read_alone(alone, ids)
    if pool is not None:
        wanted = torch.cat([wanted, _after_many(alone, config.vocab_size)])
    unit = _unit(model.dtype)
    error, mean = relative_error(found, wanted), relative_error(found, wanted, mean=True)
    return Finding(
        error < max(_LARGEST_ERROR * unit, 1e-5) or mean < max(_MEAN_ERROR * unit, 3e-5),
        f"measured: error {error:.1e} of the spread of the logits, {mean:.1e} in the mean square",
    )


def _unit(dtype: torch.dtype) -> float:
    """Return the unit in the last place of what PyTorch multiplies."""
    return torch.finfo(torch.float16 if _has_fewer_bits(dtype) else dtype).eps


def _cut_and_forked(model: _Probed, ids: Sequence[list[int]]) -> torch.Tensor:
    """Return (12, V) logits of a ragged batch of two rows that is fed in chunks, cut, and forked into three."""
    long, short, *ends = ids
    batch = _opened(model, 2)
    got = _last_logits(batch, [long[:9], short[:5]]) + _last_logits(batch, [long[9:12], short[5:6]])
    batch.rewind({0: 10})
    got += _last_logits(batch, [long[10:11], short[6:]])
    batch.keep([0, 1, 0])
    got += _last_logits(batch, ends) + _last_logits(batch, [end[:1] for end in ends])
    return torch.stack(got)


def _opened(model: _Probed, num_rows: int) -> KVBatch:
    """Return a batch of empty rows, in a pool if the model has one."""
    asked, paging = cast(LanguageModel, model), model.kv_store.paging
    if paging is None:
        return KVBatch(asked, [None] * num_rows, sharing=Sharing(1, 1) if model.can_branch else None)
    opened: KVBatch = paging.open(asked, [None] * num_rows)
    return opened


def _after_many(model: _Probed, num_ids: int) -> torch.Tensor:
    """Return the (1, V) logits after a chunk with more queries than a program of the kernel for slots has, so that its largest runs."""
    return _opened(model, 1).feed(_random_ids(num_ids, 72), [[71]]).logits[0]


def _read_alone(model: _Probed, ids: Sequence[list[int]]) -> torch.Tensor:
    """Return the (12, V) logits of `_cut_and_forked`, of forwards that have one row each, and all of it."""
    long, short, *ends = ids

    def read(row: list[int], *lengths: int) -> torch.Tensor:
        """(len(lengths), V) logits after the first tokens of a row."""
        wanted = [length - 1 for length in lengths]
        fed = KVBatch(cast(LanguageModel, model), [None]).feed([row], [wanted])
        return fed.logits[0, [fed.columns[0][place] for place in wanted]]

    begun = torch.stack([read(long[:12], 9, 12, 11), read(short, 5, 6, 7)], dim=1).flatten(0, 1)
    bases = (long[:11], short, long[:11])
    forks = [
        read(base + end + end[:1], len(base + end), len(base + end) + 1) for base, end in zip(bases, ends, strict=True)
    ]
    return torch.cat([begun, torch.stack(forks, dim=1).flatten(0, 1)])


def _last_logits(batch: KVBatch, chunks: Sequence[list[int]]) -> list[torch.Tensor]:
    """Feed the chunks and return the logits after each."""
    lasts = [len(chunk) - 1 for chunk in chunks]
    fed = batch.feed(chunks, [[last] for last in lasts])
    return [fed.logits[row, fed.columns[row][last]] for row, last in enumerate(lasts)]


def _batch(model: LanguageModel, num_rows: int, *, can_branch: bool = False) -> KVBatch:
    probed = cast(LanguageModel, _Probed(model, can_branch=can_branch))
    return KVBatch(probed, [None] * num_rows, sharing=Sharing(1, 1))


def _whole(model: LanguageModel, ids: list[int], wanted: list[int]) -> torch.Tensor:
    """Return (len(wanted), V) logits of one row that is fed in one forward."""
    return _batch(model, 1).feed([ids], [wanted]).logits[0]


def _ragged(model: LanguageModel, num_ids: int, bound: float) -> tuple[Finding, Finding]:
    """Return whether a left-padded pair of rows is exact, and whether it is after a ragged chunk."""
    long, short = _random_ids(num_ids, 13, 7)
    wanted = torch.stack([_whole(model, long, [8, 11, 12]), _whole(model, short, [4, 5, 6])])
    # Columns:  9 tokens | 3 tokens | 1 token       of the long row
    #       4 pads, 5 tokens | 2 pads, 1 token | 1 token   of the short row
    batch, errors = _batch(model, 2), list[float]()
    for chunks in ([long[:9], short[:5]], [long[9:12], short[5:6]], [long[12:], short[6:]]):
        try:
            got = batch.feed(chunks, [[len(chunk) - 1] for chunk in chunks]).logits[:, 0]
        except Exception as failure:  # any error of a model that takes one row alone, or no mask
            no = raised("a forward of two rows with a mask", failure)
            return (_measured(errors[0], bound) if errors else no), no
        errors.append(relative_error(got, wanted[:, len(errors)], wanted))
    return _measured(errors[0], bound), _measured(max(errors[1:]), bound)


def _branch(model: LanguageModel, num_ids: int, bound: float) -> Finding:
    """Return whether two rows may read a shared prefix in place. Cost: 7 forwards of at most 13 ids."""
    common, *tails = _random_ids(num_ids, 9, 4, 4)
    plain = torch.stack([_whole(model, common + tail, [10, 12]) for tail in tails])
    batch = _batch(model, 1, can_branch=True)
    batch.feed([common], [[8]])
    batch.keep([0, 0])
    try:
        first = batch.feed([tail[:2] for tail in tails], [[1], [1]]).logits[:, 0]
        batch.feed([tail[2:3] for tail in tails], [[0], [0]])
        last = batch.feed([tail[3:] for tail in tails], [[0], [0]]).logits[:, 0]
    except Exception as failure:  # any error of a model that does not expect such a mask or such keys
        return raised("a forward over a shared prefix", failure)
    return _measured(relative_error(torch.stack([first, last], dim=1), plain), bound)


def _random_ids(num_ids: int, *lengths: int) -> list[list[int]]:
    generator = torch.Generator("cpu").manual_seed(0)
    return [torch.randint(num_ids, (length,), generator=generator, device="cpu").tolist() for length in lengths]


def relative_error(
    found: torch.Tensor, wanted: torch.Tensor, like: torch.Tensor | None = None, *, mean: bool = False
) -> float:
    """Return the largest difference over the standard deviation of `like`, by default `wanted`; NaN counts as infinity.

    With `mean` it is the root of the mean square of the differences. Equal infinities are no difference. They have no part in the
    deviation, nor have the least numbers of a float type: some models exclude tokens by such a logit.
    """
    if wanted.isnan().all() and found.isnan().all():
        return 0.0  # nothing to measure: each row of such a model fails, with the reason
    like = wanted if like is None else like
    spread = like[like.isfinite() & (like > _EXCLUDED)].std(correction=0).clamp_min(1e-30)
    differences = torch.where(found == wanted, 0.0, found - wanted).abs()
    difference = differences.square().mean().sqrt() if mean else differences.max()
    return float((difference / spread).nan_to_num(nan=math.inf))
