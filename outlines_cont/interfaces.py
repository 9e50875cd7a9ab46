"""The small protocols between the parts. Nothing is imported at run time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from transformers import DynamicCache

    from outlines_cont.meter import Meter


class Tokenizer(Protocol):
    """Text to token ids and back, exact in bytes. `outlines_cont.models.tokenizer.tokenizer.Tokenizer` is the one for users."""

    @property
    def token_bytes(self) -> Sequence[bytes | None]:
        """The bytes of every token id of the model; None for a special token and for an id without a token."""

    @property
    def special_tokens(self) -> Mapping[int, str]:
        """How the special tokens are written, by id; asked for only where they are shown."""

    @property
    def markup_tokens(self) -> Mapping[int, str]:
        """Added tokens that have text and steer a model all the same, such as `<tool_response>`, by id."""

    @property
    def eos_token_id(self) -> int | None:
        """The id that ends a text, None where the tokenizer names none."""

    @property
    def fingerprint(self) -> str:
        """A digest of the whole vocabulary: equal digests, equal tokens."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text that stands at the beginning; special tokens and markup that are written in it are letters."""

    def encode_special(self, text: str) -> list[int]:
        """Return the ids of such a text where special tokens that are written in it are read as such."""

    def encode_inside(self, text: str, before: Sequence[int]) -> list[int]:
        """Return ids whose bytes are exactly those of `text`, which goes on after the ids `before`."""

    def text_bytes(self, token_ids: Sequence[int]) -> bytes:
        """Return the joined bytes of `token_ids`; special tokens have none."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a whole sequence, `errors="replace"`, without a leading prefix space."""


class TokenFSM(Protocol):
    """What a constraint asks of a token FSM; `fsm.TokenFSM` says what each method means."""

    @property
    def initial_state(self) -> int:
        """The state before the first token."""

    def state_before(self, text: bytes) -> int:
        """Return the state in which `text`, and after it a text of the language, must follow."""

    def is_accepting(self, state: int) -> bool:
        """Return whether the text so far may end here."""

    def allowed_token_ids(self, state: int) -> NDArray[np.int32]:
        """Return the allowed ids, ascending; those that end the text among them when `state` accepts."""

    def bitmask(self, state: int) -> NDArray[np.int32]:
        """Return the same as packed bits."""

    def is_late(self, state: int) -> bool:
        """Return whether the mask is yet to be made, and surely allows some token that does not end the text."""

    def next_state(self, state: int, token_id: int) -> int:
        """Return the state after `token_id`, which must be allowed and no end of text."""

    def wanted(self, state: int, text: bytes) -> str:
        """Return what must follow after `text`, which has led to `state`, for people."""

    def forced_text(self, state: int) -> bytes:
        """Return bytes with which every accepted continuation begins."""


class BufferStore(Protocol):
    """What buffers of keys and values ask of the store that they belong to; `kv.KVStore` says what each method means."""

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers that are alive."""

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token; 0 where nothing was fed yet."""

    @property
    def epoch(self) -> int:
        """A number that grows when keys and values that were made before are no longer those of the model."""

    def begin_epoch(self) -> None:
        """Note that what was made so far is no longer what the model makes of the same tokens."""

    def has_room(self, nbytes: int) -> bool:
        """Return whether so many more bytes fit into the budget."""

    def add(self, buffer: Any) -> None:
        """Take note of a new buffer."""

    def touch(self, buffer: Any) -> None:
        """Note that a buffer is used now."""

    def reserve(self, buffer: Any, nbytes: int) -> None:
        """Make room for more bytes in a buffer."""


class PrefixStore(Protocol):
    """What the engine asks of the prefix cache of a model; `kv.PrefixCache` says what each method means."""

    min_tokens: int

    @property
    def is_on(self) -> bool:
        """Whether prefixes are reused at all."""

    def refresh(self) -> None:
        """Clear, if the weights are not those of the last call."""

    def num_held(self, token_ids: tuple[int, ...]) -> int:
        """Return how many of the first tokens of a sequence are held."""

    def find(self, token_ids: tuple[int, ...]) -> Any:
        """Return the `RowKV` of the first tokens of a sequence, as many as are held; None for none."""

    def keep(self, token_ids: tuple[int, ...], kv: Any, least: int | None = None) -> None:
        """Hold a copy of the keys and values of a sequence as far as they are new, where `least` tokens are, and there is room."""

    def note(self, num_tokens: int) -> None:
        """Count a row that has begun with so many tokens of others."""


class LanguageModel(Protocol):
    """What the engine asks of a model. `outlines_cont.models.HuggingFaceModel` is the one for users."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that belongs to the model."""

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits."""

    @property
    def context_length(self) -> int | None:
        """The largest number of tokens of a sequence, None where the model sets none."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a text."""

    @property
    def device(self) -> torch.device:
        """Where the input ids go and the logits come from."""

    @property
    def fingerprint(self) -> str:
        """A digest of the config and of some of the weights: equal digests, equal logits."""

    @property
    def dtype(self) -> torch.dtype:
        """The float type of the weights."""

    @property
    def kv_store(self) -> BufferStore:
        """The keys and values of the model's rows that are alive, and their budget. `kv.KVStore` is the one for users."""

    @property
    def is_recurrent(self) -> bool:
        """Whether the cache cannot be cut, so that rows run alone and are replayed from snapshots."""

    @property
    def has_kv(self) -> bool:
        """Whether its caches hold keys and values, which transformers could go on with."""

    def new_cache(self) -> DynamicCache:
        """Return an empty cache of one row, with the layers that the model needs."""

    @property
    def can_branch(self) -> bool:
        """Whether rows may read a prefix that they share where it lies."""

    @property
    def can_reuse(self) -> bool:
        """Whether rows may begin with keys and values that other rows have fed."""

    @property
    def prefix_cache(self) -> PrefixStore:
        """The keys and values of prompts and texts that ran lately."""

    @property
    def can_stack(self) -> bool:
        """Whether rows of different lengths may be left-padded into one batch without changing their logits."""

    @property
    def can_skip(self) -> bool:
        """Whether masked columns between the tokens of a row leave its logits as they are."""

    @property
    def memo(self) -> dict[object, Any]:
        """Values that belong to the model, such as its vocabulary and its token FSMs."""

    def count(self, counts: Meter) -> None:
        """Add the work of a step to every open meter."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        cache: DynamicCache,
        columns: Sequence[int],
    ) -> torch.Tensor:
        """Feed `input_ids` on top of `cache`, which grows.

        Args:
            input_ids: (R, Q) int64.
            attention_mask: (R, C + Q) int64, 1 for tokens; C columns are in the cache. Where the cache has shared segments,
                (R, 1, Q, C + Q) additive over the tails, None where a single query sees all of its tail.
            position_ids: (R, Q) int64.
            cache: the keys and values of R rows; the forward appends to it.
            columns: ascending columns of `input_ids` whose logits are wanted, at least one.

        Returns:
            (R, len(columns), V) logits in the float type of the model, at least float32.
        """
