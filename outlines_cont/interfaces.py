"""Protocols (structural types) between the subpackages: tokenizer, language model, engine, KV store, prefix cache. They are for
type checkers and readers, and import nothing at run time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from threading import RLock

    import torch
    from transformers import DynamicCache


class Tokenizer(Protocol):
    """Encodes text as token ids and decodes them, exact in bytes. Implemented by `outlines_cont.models.tokenizer.tokenizer.Tokenizer`.

    Attributes:
        token_bytes: the bytes of every token id of the model; None for a special token and for an id without a token.
        special_tokens: the texts of the special tokens, by id.
        markup_tokens: the texts of added tokens that are not special but have a meaning for the model, such as `<tool_response>`, by id.
        eos_token_id: the id that ends a text, None if the tokenizer has none.
        fingerprint: a digest of the whole vocabulary; tokenizers with equal digests have equal tokens.
    """

    @property
    def token_bytes(self) -> Sequence[bytes | None]: ...
    @property
    def special_tokens(self) -> Mapping[int, str]: ...
    @property
    def markup_tokens(self) -> Mapping[int, str]: ...
    @property
    def eos_token_id(self) -> int | None: ...
    @property
    def fingerprint(self) -> str: ...

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text at the beginning of a sequence; special tokens and markup in it are encoded as plain text."""

    def encode_special(self, text: str) -> list[int]:
        """Return the ids of such a text, with special tokens in it as control tokens."""

    def encode_inside(self, text: str, before: Sequence[int]) -> list[int]:
        """Return ids whose bytes are exactly those of `text`, as a continuation of the ids `before`."""

    def text_bytes(self, token_ids: Sequence[int]) -> bytes:
        """Return the joined bytes of `token_ids`; special tokens have none."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of a whole sequence, `errors="replace"`, without a leading prefix space."""


class BufferStore(Protocol):
    """The methods of a KV store that its buffers use; documented in `kv.store.KVStore`."""

    paging: Any

    @property
    def nbytes(self) -> int: ...
    @property
    def token_bytes(self) -> int: ...
    @property
    def lock(self) -> RLock: ...
    @property
    def epoch(self) -> int: ...
    def begin_epoch(self) -> None: ...
    def has_room(self, nbytes: int) -> bool: ...
    def touch(self, buffer: Any) -> None: ...
    def reserve(self, buffer: Any, nbytes: int) -> None: ...


class PrefixStore(Protocol):
    """The methods of a prefix cache that the engine uses; documented in `kv.prefix_cache.PrefixCache`."""

    min_tokens: int

    @property
    def is_on(self) -> bool: ...
    def refresh(self) -> None: ...
    def num_held(self, token_ids: tuple[int, ...]) -> int: ...
    def find(self, token_ids: tuple[int, ...]) -> Any: ...
    def keep(self, token_ids: tuple[int, ...], kv: Any, least: int | None = None) -> None: ...
    def note(self, num_tokens: int) -> None: ...


class ImagePixels(Protocol):
    """What rows know of the pixels of an image; implemented by `kv.pixel_store.Pixels`.

    Attributes:
        digest: 32 hexadecimal digits that tell the image from others.
        picture: a small picture of it, as a `data:` URL of a JPEG; empty if it is not known.
        inputs: the tensors that a network takes for it; None once they were dropped.
    """

    @property
    def digest(self) -> str: ...
    @property
    def inputs(self) -> Mapping[str, torch.Tensor] | None: ...
    @property
    def picture(self) -> str: ...


class LanguageModel(Protocol):
    """The methods of a language model that the engine uses, implemented by `outlines_cont.models.HuggingFaceModel`.

    Attributes:
        tokenizer: the tokenizer that belongs to the model.
        vocab_size: V, the width of the logits.
        context_length: the largest number of tokens of a sequence, None if the model has no limit.
        eos_token_ids: every id that ends a text.
        device: the device of the input ids and of the logits.
        fingerprint: a digest of the config and of some of the weights; models with equal digests have equal logits.
        dtype: the float type of the weights.
        kv_store: the keys and values of the model's rows that are alive, and their budget. Implemented by `kv.store.KVStore`.
        is_recurrent: whether the cache cannot be cut, so that rows run alone and are replayed from snapshots.
        has_kv: whether its caches hold keys and values, which transformers could continue.
        kv_layout: keys and values of no tokens for every layer, None for one without its own; see `kv.serial.kv_layout`.
        can_branch: whether rows may attend to a shared prefix in place, without copying it.
        can_reuse: whether rows may begin with keys and values of other rows.
        prefix_cache: the keys and values of recent prompts and texts.
        can_stack: whether rows of different lengths may be left-padded into one batch without changing their logits.
        can_skip: whether masked columns between the tokens of a row do not change its logits.
        engine: the engine that all calls of the model share; made at its first use.
        memo: a cache of values derived from the model, such as its vocabulary and its token FSMs.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int | None: ...
    @property
    def eos_token_ids(self) -> frozenset[int]: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def kv_store(self) -> BufferStore: ...
    @property
    def is_recurrent(self) -> bool: ...
    @property
    def has_kv(self) -> bool: ...

    def new_cache(self) -> DynamicCache:
        """Return an empty cache of one row, with the layers that the model needs."""

    @property
    def kv_layout(self) -> list[Any]: ...
    @property
    def can_branch(self) -> bool: ...
    @property
    def can_reuse(self) -> bool: ...
    @property
    def prefix_cache(self) -> PrefixStore: ...
    @property
    def can_stack(self) -> bool: ...
    @property
    def can_skip(self) -> bool: ...
    @property
    def memo(self) -> dict[object, Any]: ...

    def count(self, counts: Any) -> None:
        """Add the work of a step, a `Meter`, to every open meter."""

    @property
    def engine(self) -> Any: ...

    def prefilled(self, rows: Sequence[Any], meter: Any = None) -> list[Any]:
        """Return rows of a state with all tokens cached and the logits after them; count the fed tokens in a `Meter`, if given.

        Errors and cost are those of `engine.prefill.EngineModel.prefilled`.
        """

    def prefilled_before(
        self, rows: Sequence[Any], nums_before: Sequence[int], meter: Any = None
    ) -> list[tuple[Any, dict[int, torch.Tensor]]]:
        """Return the same, with the (V,) logits before each of the last tokens of a row, `nums_before` of them, and after them."""

    def read_paths(
        self, paths: Sequence[tuple[Any, Any]], *, is_urgent: bool = False
    ) -> Generator[Any, None, list[tuple[Any, dict[int, list[float]]]]]:
        """Return a task of the engine that reads log-probabilities of next tokens along rows; see `engine.prefill.EngineModel`."""

    def read_logits(self, row: Any, indices: Sequence[int]) -> torch.Tensor:
        """Return (len(indices), V), the logits after the tokens at `indices` of a row, which are fed again."""

    def score_rows(self, rows: Sequence[Any], firsts: Sequence[int], top: int = 0) -> list[list[Any]]:
        """Return the log-probability of each token of rows, of each from token `firsts` on, with the `top` most probable tokens there."""

    @property
    def image_placeholder(self) -> str:
        """What a chat template, and the processor, writes in the place of an image."""

    def read_image(self, image: Any) -> Any:
        """Return an image as the network takes it, a `kv.pixel_store.ReadImage`; raise `UnsupportedModel` where it takes none."""

    def pixels_of(self, token_ids: Sequence[int], inputs: Mapping[str, torch.Tensor]) -> Any:
        """Return the same for the tensors of an image that were saved."""

    def feed_image(
        self, share: Any, token_ids: Sequence[int], pixels: Any, offset: int, wanted: Sequence[int]
    ) -> tuple[Any, Any]:
        """Feed an image on top of the keys and values of a row; return these with its own, and a `kv.batch.Fed`.

        `offset` is by how much positions before it differ from indices; `wanted` are the indices of its tokens after which logits are
        wanted.
        """

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
                (R, 1, Q, C + Q) additive over the tails, None if a single query sees all of its tail; on CUDA, None also for several
                queries that are the last tokens of tails without gaps.
            position_ids: (R, Q) int64.
            cache: the keys and values of R rows; the forward appends to it.
            columns: ascending columns of `input_ids` whose logits are needed, at least one.

        Returns:
            (R, len(columns), V) logits in the float type of the model, at least float32.
        """
