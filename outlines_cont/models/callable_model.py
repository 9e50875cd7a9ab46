"""`CallableModel`: a language model that is a function from token ids to logits, for inference engines other than PyTorch; made by
`from_callable`. There is no KV cache: each call receives one whole sequence, so that the cost of a step grows with its length, unless the
function caches something itself. Equal sequences of a forward are computed once, and results are checked. It cannot be pickled.

The engine stores the ids of each row instead of keys and values, 4 bytes per token, so batches, forks, slices and rewinding work.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from transformers import DynamicCache

from outlines_cont.checks import check, is_int, knows_its_options
from outlines_cont.engine.prefill import EngineModel
from outlines_cont.errors import InvalidLogits, NotPicklable, OptionError, OutlinesContError, UserCodeError
from outlines_cont.interfaces import Tokenizer as TokenizerProtocol
from outlines_cont.kv.prefix_cache import PrefixCache
from outlines_cont.kv.store import KVStore
from outlines_cont.models.capability import Capabilities, Finding
from outlines_cont.models.loading import next_number
from outlines_cont.models.tokenizer.tokenizer import Tokenizer
from outlines_cont.user_code import place_of, shielded

Logits = Callable[[NDArray[np.int64]], ArrayLike]


class HasLogits(Protocol):
    """An object with a method that computes logits."""

    def logits(self, token_ids: NDArray[np.int64]) -> ArrayLike:
        """Return (V,) logits after (T,) token ids, or (T, V) after each of them."""


_NO_KV = "a function of token ids: there are no keys and values"
_IDS_ONLY = Finding(True, "a function of token ids: rows are whole sequences of them")
_NO_MODULES = Finding(False, "a function of token ids: there are no modules")
_CAPABILITIES = Capabilities(
    _IDS_ONLY, _IDS_ONLY, _IDS_ONLY, Finding(False, _NO_KV), Finding(False, _NO_KV), _NO_MODULES, _IDS_ONLY
)


class CallableModel(EngineModel):
    """A language model that is a function from token ids to logits. Make one with `models.from_callable`.

    Attributes:
        tokenizer: the tokenizer, exact in bytes.
        vocab_size: V, the width of the logits.
        context_length: the largest number of tokens of a sequence, None for no limit.
        eos_token_ids: every id that ends a text.
        dtype: float64 where the function returned that when it was first called, else float32.
        prefix_cache: turned off, because there are no keys and values.
    """

    is_recurrent = False
    has_kv = False
    can_stack = True
    can_skip = True
    can_branch = False
    can_reuse = False
    capabilities = _CAPABILITIES
    device = torch.device("cpu")

    def __init__(
        self,
        logits: Logits,
        tokenizer: TokenizerProtocol,
        *,
        vocab_size: int,
        dtype: torch.dtype,
        eos_token_ids: frozenset[int],
        context_length: int | None,
        name: str | None,
    ) -> None:
        super().__init__()
        self._logits = logits
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.dtype = dtype
        self.eos_token_ids = eos_token_ids
        self.context_length = context_length
        self.kv_store = KVStore()
        self.prefix_cache = PrefixCache(self.kv_store, 0)
        self._name = name
        self._number = next_number()
        facts = f"{name or secrets.token_hex()} {vocab_size} {dtype} {tokenizer.fingerprint}"
        self.fingerprint = hashlib.sha256(facts.encode()).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        """Raise `NotPicklable`: another process cannot get the function from here."""
        raise NotPicklable(
            f"expected a model that another process can open, got {self!r}, which is a function. Call `models.from_callable` in each "
            "process, with the same `name`; states go there as files: `state.save(file)`, `SequenceState.load(file, model)`."
        )

    def new_cache(self) -> DynamicCache:
        """Return an empty cache of one row."""
        return DynamicCache()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        cache: DynamicCache,
        columns: Sequence[int],
    ) -> torch.Tensor:
        """Append ids to those in `cache` and return (R, len(columns), V) logits. See `LanguageModel.forward`.

        Cost: a call of the function for each distinct sequence, or for each wanted column of it where the function returns the next token's
        logits alone.
        """
        num_rows, width = input_ids.shape
        new = input_ids[:, None, :, None].to(torch.int32)
        held, _ = cache.update(new, new.new_empty(num_rows, 1, width, 0), 0)
        rows = held[:, 0, :, 0].numpy().astype(np.int64)
        seen = np.ones(rows.shape, bool) if attention_mask is None else attention_mask.numpy().astype(bool)
        out = torch.zeros(num_rows, len(columns), self.vocab_size, dtype=self.dtype, device="cpu")
        known: dict[bytes, torch.Tensor] = {}
        stops = [rows.shape[1] - width + column + 1 for column in columns]
        for row, is_token in enumerate(seen):
            lengths = {at: int(is_token[:stop].sum()) for at, stop in enumerate(stops) if is_token[stop - 1]}
            token_ids = rows[row, is_token]
            for at in sorted(lengths, reverse=True):
                out[row, at] = self._after(token_ids[: lengths[at]], [*lengths.values()], known)
        return out

    def _after(
        self, token_ids: NDArray[np.int64], lengths: Sequence[int], known: dict[bytes, torch.Tensor]
    ) -> torch.Tensor:
        """Return (V,) logits after (T,) ids, from `known` or the function, whose results for `lengths` are added to `known`."""
        key = token_ids.tobytes()
        if key not in known:
            values = called(self._logits, token_ids, self.vocab_size)
            if values.ndim == 1:
                known[key] = finite(values, len(token_ids)).to(self.dtype)
            else:
                for length in (length for length in lengths if length <= len(token_ids)):
                    known[token_ids[:length].tobytes()] = finite(values[length - 1], length).to(self.dtype)
        return known[key]

    def __repr__(self) -> str:
        name = self._name or getattr(self._logits, "__qualname__", type(self._logits).__name__)
        return f"<{type(self).__name__} {name}, {self.vocab_size} tokens, {self.dtype}{self._number}>"


def called(logits: Logits, token_ids: NDArray[np.int64], vocab_size: int | None) -> NDArray[Any]:
    """Return the (V,) or (T, V) logits of a function for (T,) ids, as float32 or float64; any V where `vocab_size` is None.

    Raises `UserCodeError` if it raised, or returned anything but an array of such a shape; the original error is the cause.
    """
    length, size = len(token_ids), "V" if vocab_size is None else vocab_size
    expected = (
        f"expected that `logits`, given {length} token ids, returns an array of floats of shape ({size},) for the next token, or "
        f"({length}, {size}) for the one after each"
    )
    try:
        found = shielded(logits, token_ids.copy())
    except OutlinesContError:
        raise
    except Exception as error:
        raise UserCodeError(f"{expected}, but it raised {error!r}{place_of(error)}.") from error
    values = _array(found, expected)
    fits = values.ndim in (1, 2) and values.shape[:-1] in ((), (length,)) and vocab_size in (None, values.shape[-1])
    if not fits or not values.size:
        advice = " Take the one row of the batch: `array[0]`." if values.ndim > 1 and len(values) == 1 else ""
        raise UserCodeError(f"{expected}, got one of shape {values.shape}.{advice}")
    return values


def finite(line: NDArray[Any], length: int) -> torch.Tensor:
    """Return (V,) logits after `length` ids as a tensor; `InvalidLogits` if one is NaN or plus infinity."""
    is_wrong = ~(line < np.inf)  # true for NaN, too
    if is_wrong.any():
        odd = int(is_wrong.argmax())
        raise InvalidLogits(
            f"expected that `logits`, given {length} token ids, returns finite numbers, or minus infinity for tokens that it excludes, got "
            f"{line[odd]} for token {odd}."
        )
    return torch.from_numpy(np.array(line))


def _array(found: object, expected: str) -> NDArray[Any]:
    """Return the result of a function as an array of float32 or float64."""
    if isinstance(found, torch.Tensor):
        found = found.detach().cpu()
        found = (found if found.dtype == torch.float64 else found.float()).numpy()
    try:
        values = np.asarray(found)
    except ValueError:  # lists of different lengths
        values = np.array(None)
    if values.dtype.kind not in "fiu":
        kind = f" of type {values.dtype}" if isinstance(found, np.ndarray) else ""
        raise UserCodeError(f"{expected}, got {type(found).__name__}{kind}.")
    return values if values.dtype == np.float64 and isinstance(found, np.ndarray) else values.astype(np.float32)


@knows_its_options()
def from_callable(
    logits: Logits | HasLogits,
    tokenizer: Any,
    *,
    eos_token_ids: int | Sequence[int] | None = None,
    context_length: int | None = None,
    name: str | None = None,
) -> CallableModel:
    """Return a model that computes logits by a function, or by the method `logits` of an object: ONNX Runtime, NumPy, another machine.

    The function receives (T,) int64 token ids, a numpy array with at least one, and returns (V,) logits of the next token, or (T, V) of the
    token after each of them: a numpy array, a tensor, or nested lists, of floats; minus infinity excludes a token. The same ids must give
    the same logits. It is called once for each sequence and step, in the thread that takes the step. Return (T, V) if that costs nothing:
    it saves calls where several tokens are fed together, such as forced text and drafts.

    Every generator and sampler, states, forks, slices, checks, policies and drafts work with it. What needs keys and values does
    not: `state.kv_cache` and `SequenceState.from_cache` raise `UnsupportedModel`, and the prefix cache is off. So the cost of a step grows
    with the length of the text, unless the function caches something itself.

    Args:
        logits: the function, or an object that has it.
        tokenizer: what `models.from_transformers` takes, or what such a tokenizer wraps (`tokenizers.Tokenizer`, ...).
        eos_token_ids: the ids that end a text; None for the tokenizer's.
        context_length: the largest number of tokens of a sequence; None for no limit.
        name: identifies the model, so that states saved with it can be loaded with a model of the same name; None: they
            can be loaded with this object alone.

    Raises:
        OptionError: an argument has another type or value.
        UserCodeError, InvalidLogits: the function, which is called once with token id 0, does not do what it should.
        TokenizerError: the tokens of the tokenizer do not join to the text.
    """
    function = getattr(logits, "logits", logits)
    if not callable(function):
        raise OptionError(
            f"expected a function from token ids to logits, or an object with such a method `logits`, got {type(logits).__name__}",
            "logits",
        )
    holds = context_length is None or is_int(context_length, 1)
    check("context_length", context_length, holds, "a number of tokens")
    first = finite(called(function, np.zeros(1, np.int64), None).reshape(-1), 1)
    tokens = _tokenizer(tokenizer, len(first))
    return CallableModel(
        function,
        tokens,
        vocab_size=len(first),
        dtype=first.dtype,
        eos_token_ids=_ends(tokens, eos_token_ids, len(first)),
        context_length=context_length,
        name=name,
    )


def _tokenizer(tokenizer: Any, vocab_size: int) -> TokenizerProtocol:
    """Return a tokenizer of as many tokens as there are logits; it may have fewer itself."""
    tokens: TokenizerProtocol = tokenizer if hasattr(tokenizer, "token_bytes") else Tokenizer(tokenizer)
    last = max((token_id for token_id, data in enumerate(tokens.token_bytes) if data), default=-1)
    if last >= vocab_size:
        raise OptionError(
            f"expected a tokenizer whose tokens are below {vocab_size}, the width of the logits, got one with token {last}. Give the "
            "tokenizer of the model that `logits` runs.",
            "tokenizer",
        )
    is_as_wide = len(tokens.token_bytes) == vocab_size or tokens is tokenizer
    return tokens if is_as_wide else Tokenizer(tokenizer, vocab_size=vocab_size)


def _ends(tokens: TokenizerProtocol, given: int | Sequence[int] | None, vocab_size: int) -> frozenset[int]:
    own = () if tokens.eos_token_id is None else (tokens.eos_token_id,)
    ends = own if given is None else (given,) if isinstance(given, int) else tuple(given)
    odd = next((end for end in ends if not hasattr(end, "__index__") or not 0 <= end < vocab_size), None)
    check("eos_token_ids", odd, odd is None, f"token ids from 0 to {vocab_size - 1}")
    return frozenset(map(int, ends))
