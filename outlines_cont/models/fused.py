"""`FusedDecoder`: the forward of decoders of transformers over the weights of their modules, with few operators: one product for queries,
keys and values, one for gate and up, residuals added by the product, rotary tables in place of sines, keys and values written into their
buffer. 14 operators in a layer of Llama. It runs one forward at a time, as the engine does. `fused_decoder` returns that of a network.

Encoders, mixtures of experts, several inputs and families that are not in the table are left to transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from outlines_cont.device import upload
from outlines_cont.kv.attention import additive_mask, causal_mask, fits_flash, prefix_attention
from outlines_cont.kv.growing import Tails
from outlines_cont.models.decoder_family import Decoder, DecoderLayer, Norm, NotFused, read_decoder
from outlines_cont.models.joined import WeightsWatch
from outlines_cont.models.product import Product

# The positions of a new rotary table; a longer one is twice as long as is needed.
_POSITIONS = 1024
# The most tokens of a forward whose space is kept for the next one.
_KEPT_TOKENS = 256
_DECODERS: WeakKeyDictionary[Any, FusedDecoder] = WeakKeyDictionary()


def fused_decoder(network: Any, around: Sequence[nn.Module] = ()) -> FusedDecoder:
    """Return the fused forward of a network, whose weights are joined for it: their storage changes, not their values.

    A change of the modules `around` it, whose forward it replaces, too, is one of the network.

    Raises `NotFused` with the reason if there is none. Cost: a copy of most weights, layer by layer, the first time.
    """
    known = _DECODERS.get(network)
    if known is None or known.change() is not None:
        known = _DECODERS[network] = FusedDecoder(network, around)
    return known


@dataclass(frozen=True, slots=True, eq=False)
class _Sight:
    """What the queries of a forward see in layers of one kind: columns from `start` on, under an additive mask or causally."""

    start: int
    mask: Tensor | None
    is_causal: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """The rotation of the heads of each token: (N, 1, T) factors, and (N, 1, T / 2) those of the other half for each half."""

    cos: Tensor
    low: Tensor
    high: Tensor


class _Heads:
    """Views of the queries, keys and values of N = R * Q tokens, (N, (H + 2 Hk) D), of which rotary embeddings turn the first T of each D.

    Attributes:
        flat: all of them.
        turned: (N, H + Hk, T), what is turned of queries and keys; `low` and `high` are its halves.
        query: (R, H, Q, D); if `is_folded`, (R, Hk, H / Hk, D).
        pair: (2, R, Hk, Q, D), keys and values.
    """

    __slots__ = ("flat", "high", "low", "pair", "query", "turned")

    def __init__(self, flat: Tensor, shape: torch.Size, decoder: Decoder, num_turned: int, is_folded: bool) -> None:
        (rows, width), count, key_count = shape, decoder.heads, decoder.key_heads
        self.flat = flat
        heads = flat.view(rows * width, -1, decoder.size)
        self.turned = heads[:, : count + key_count, :num_turned]
        self.low, self.high = self.turned.chunk(2, -1) if num_turned else (self.turned, self.turned)
        query = heads.narrow(1, 0, count)
        if is_folded:  # the query heads of a key head become its queries, so that its keys are read once
            self.query = query.view(rows, key_count, -1, decoder.size)
        else:
            self.query = query.view(rows, width, count, -1).transpose(1, 2)
        pair = heads.narrow(1, count, 2 * key_count)
        self.pair = pair.view(rows, width, 2, key_count, -1).permute(2, 0, 3, 1, 4)


class _Space:
    """What the layers of a forward write one after the other, for N tokens, with views of it: those of a step are made once.

    Attributes:
        key: what it depends on: the shape of the ids, T, and whether queries are folded.
        flat, heads: queries, keys and values as the product gives them, and after norms of heads; the same if there are none.
        turning: (N, H + Hk, T), a factor of the rotation, with its halves `low` and `high`.
        inner, gates: (N, outputs), what `up` gives, with its halves.
    """

    __slots__ = ("flat", "gates", "heads", "high", "inner", "key", "low", "turning")

    def __init__(self, x: Tensor, decoder: Decoder, key: tuple[torch.Size, int, bool]) -> None:
        layer, num_turned = decoder.layers[0], key[1]
        self.key = key
        self.flat = x.new_empty((len(x), layer.qkv.weight.shape[1]))
        whole = self.flat if layer.head_norms is None else torch.empty_like(self.flat)
        self.heads = _Heads(whole, key[0], decoder, *key[1:])
        self.turning = x.new_empty((len(x), decoder.heads + decoder.key_heads, num_turned))
        self.low, self.high = self.turning.chunk(2, -1) if num_turned else (self.turning, self.turning)
        self.inner = x.new_empty((len(x), layer.up.weight.shape[1]))
        self.gates = self.inner.chunk(2, -1)


class FusedDecoder:
    """A decoder of which every layer runs in a few operators. It shares the memory of the network's weights, and does not keep it alive."""

    def __init__(self, network: Any, around: Sequence[nn.Module] = ()) -> None:
        self._decoder = decoder = read_decoder(network)
        self._watch = WeightsWatch(network, around)
        self._groups = decoder.heads // decoder.key_heads
        self._ropes = {layer.rope for layer in decoder.layers}
        self._windows = {layer.window for layer in decoder.layers}
        self._tables: dict[str, Tensor] = {}
        self._space: _Space | None = None  # that of the last small forward, while none runs
        reason = self.change()
        if reason is not None:
            raise NotFused(reason)

    def change(self) -> str | None:
        """Return what has changed in the network, so that transformers has to run it; None for nothing."""
        return self._watch.change()

    @property
    def kv_layout(self) -> tuple[int, Tensor]:
        """The number of layers, and keys of no tokens, (Hk, 0, D), as every layer has them."""
        decoder = self._decoder
        return len(decoder.layers), decoder.embedding.new_empty((decoder.key_heads, 0, decoder.size))

    def prepare(self, stop: int) -> list[Tensor]:
        """Make the rotary tables of positions below `stop`, and return them."""
        device = self._decoder.embedding.device
        for name in self._ropes:
            self._turn(name, torch.zeros(1, dtype=torch.int64, device=device), stop)
        return [*self._tables.values()]

    def forget_space(self) -> None:
        """Let the next forward have space of its own: that of a graph is in the memory of the graph."""
        self._space = None

    def __call__(
        self, input_ids: Tensor, mask: Tensor | None, position_ids: Tensor, tails: Tails, columns: Sequence[int]
    ) -> Tensor:
        """Feed (R, Q) ids on top of the tails and return (R, len(columns), V) logits; see `LanguageModel.forward`."""
        decoder, shape = self._decoder, input_ids.shape
        positions = position_ids.reshape(-1)
        x = functional.embedding(input_ids.reshape(-1), decoder.embedding)
        if decoder.embedding_scale != 1:
            x = x * decoder.embedding_scale
        if decoder.positions is not None:
            x = x + functional.embedding(positions, decoder.positions)
        turns = {name: self._turn(name, positions, tails.num_columns + shape[1]) for name in self._ropes}
        is_behind = tails.is_ours and shape[1] > 1 and tails.num_columns > 0
        if is_behind and mask is None and not fits_flash(x.dtype, decoder.size, decoder.size):
            mask = causal_mask(shape[1], tails.length + shape[1], x.dtype, x.device)  # once for all layers
        sights = {window: _sight(mask, input_ids, tails, window, x.dtype) for window in self._windows}
        space = self._space_of(x, shape, turns, is_ours=tails.is_ours or tails.is_paged)
        tails.begin(len(decoder.layers), space.heads.pair[0])
        for index, layer in enumerate(decoder.layers):
            x = self._attention(x, index, space, turns[layer.rope], sights[layer.window], tails)
            if index == len(decoder.layers) - 1:
                x = _wanted(x, shape, columns)
            x = self._feed_forward(x, layer, space)
        self._space = space if len(positions) <= _KEPT_TOKENS else None
        x = decoder.norm(x)
        logits = decoder.head(x).view(shape[0], len(columns), -1)
        if decoder.logits_scale != 1:
            logits = logits * decoder.logits_scale
        cap = decoder.logits_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _space_of(
        self, x: Tensor, shape: torch.Size, turns: dict[str | None, _Turn | None], *, is_ours: bool
    ) -> _Space:
        """Return the space of a forward that begins with `x`; none but this forward has it."""
        space, self._space = self._space, None
        num_turned = next((turn.cos.shape[-1] for turn in turns.values() if turn is not None), 0)
        key = shape, num_turned, shape[1] == 1 and not is_ours and x.device.type == "cpu"
        return space if space is not None and space.key == key else _Space(x, self._decoder, key)

    def _attention(
        self, x: Tensor, index: int, space: _Space, turn: _Turn | None, sight: _Sight, tails: Tails
    ) -> Tensor:
        layer = self._decoder.layers[index]
        before, after, _, _ = layer.norms
        heads = self._heads(x if before is None else before(x), layer, turn, space)
        keys, values = tails.write_pair(index, heads.pair)
        if tails.is_paged:
            out = tails.attend(heads.query, keys, values, layer.scale, layer.window)
            return self._add(x, out.reshape(len(x), -1), layer.output, after)
        if sight.start:
            keys, values = keys[:, :, sight.start :], values[:, :, sight.start :]
        if tails.is_ours or x.device.type != "cpu":
            out, _ = prefix_attention(layer.attention, heads.query, keys, values, sight.mask, scaling=layer.scale)
        else:
            is_folded = space.key[2]
            out = functional.scaled_dot_product_attention(
                heads.query, keys, values, sight.mask, is_causal=sight.is_causal, scale=layer.scale,
                enable_gqa=self._groups > 1 and not is_folded,
            )  # fmt: skip
            out = out if is_folded else out.transpose(1, 2)
        return self._add(x, out.reshape(len(x), -1), layer.output, after)

    def _heads(self, x: Tensor, layer: DecoderLayer, turn: _Turn | None, space: _Space) -> _Heads:
        """Return queries, keys and values of (N, ...) tokens, turned."""
        decoder = self._decoder
        flat = layer.qkv(x, space.flat)
        if layer.head_norms is not None:
            parts, unit = (flat, decoder.size) if layer.norms_whole else (flat.view(len(x), -1, decoder.size), 1)
            sizes = [count * unit for count in (decoder.heads, decoder.key_heads, decoder.key_heads)]
            query, keys, values = torch.split_with_sizes(parts, sizes, 1)
            norm_query, norm_keys = layer.head_norms
            flat = space.heads.flat
            torch.cat([norm_query(query), norm_keys(keys), values], 1, out=flat.view(parts.shape))
        heads = space.heads if flat is space.heads.flat else _Heads(flat, space.key[0], decoder, *space.key[1:])
        if turn is not None:
            torch.mul(heads.high, turn.low, out=space.low)
            torch.mul(heads.low, turn.high, out=space.high)
            torch.addcmul(space.turning, heads.turned, turn.cos, out=heads.turned)
        return heads

    def _feed_forward(self, x: Tensor, layer: DecoderLayer, space: _Space) -> Tensor:
        _, _, before, after = layer.norms
        inner = layer.up(x if before is None else before(x), space.inner if len(x) == len(space.inner) else None)
        if self._decoder.is_gated:
            gate, up = space.gates if inner is space.inner else inner.chunk(2, -1)
            inner = layer.activation(gate).mul_(up)
        else:
            inner = layer.activation(inner)
        return self._add(x, inner, layer.down, after)

    def _add(self, x: Tensor, inner: Tensor, product: Product, norm: Norm | None) -> Tensor:
        """Add a product to `x`, normed before where there is a norm, and return it."""
        scale = self._decoder.residual_scale
        if norm is not None:
            return x.add_(norm(product(inner)), alpha=scale)
        return product.add_to(x, inner, scale)

    def _turn(self, name: str | None, positions: Tensor, stop: int) -> _Turn | None:
        """Return the rotation of tokens at `positions`, all below `stop`, in layers with a rotary table; to read them would be a sync."""
        if name is None:
            return None
        table = self._tables.get(name)
        if table is None or len(table) < stop:
            table = self._tables[name] = self._table(name, max(2 * stop, _POSITIONS), positions.device)
        num_turned = table.shape[2] // 2
        return _Turn(*table.index_select(0, positions).split_with_sizes([num_turned, *[num_turned // 2] * 2], 2))

    def _table(self, name: str, length: int, device: torch.device) -> Tensor:
        """Return (length, 1, 2 T) factors of a rotary embedding, those of a `_Turn` side by side."""
        rotary: Any = self._decoder.rotary
        options = {"layer_type": name} if hasattr(rotary, "layer_types") else {}
        like = self._decoder.embedding[:1, None]
        positions, axes = torch.arange(length, device=device), self._decoder.position_axes
        found = rotary(like, positions.expand(axes, 1, -1) if axes > 1 else positions[None], **options)
        # Some releases of transformers have angles for each axis.
        cos, sin = (angles.flatten(0, -3)[0].to(like.dtype) for angles in found)
        half = sin.shape[1] // 2
        return torch.cat([cos, -sin[:, :half], sin[:, half:]], 1)[:, None]


def _wanted(x: Tensor, shape: torch.Size, columns: Sequence[int]) -> Tensor:
    """Return the rows of `x` (R * Q, ...) whose logits are wanted: no layer is after them."""
    rows, width = shape
    if len(columns) == width:
        return x
    x = x.view(rows, width, -1)
    first, stop = columns[0], columns[-1] + 1
    is_range = len(columns) == stop - first
    x = x[:, first:stop] if is_range else x.index_select(1, upload(np.array(columns), x.device))
    return x.reshape(rows * len(columns), -1)


def _sight(mask: Tensor | None, input_ids: Tensor, tails: Tails, window: int | None, dtype: torch.dtype) -> _Sight:
    """Return what the queries see. `mask` is that of `KVBatch`: (R, C + Q) integers, or additive where the attention is ours."""
    if tails.is_ours or tails.is_paged:
        return _Sight(0, mask, mask is None and input_ids.shape[1] > 1)
    width, device = input_ids.shape[1], input_ids.device
    total = tails.length + width
    window = total if window is None else window
    start = max(total - width - window + 1, 0)  # no query sees an earlier column
    if mask is None and (width == 1 or (tails.length == 0 and total <= window)):
        return _Sight(start, None, width > 1)
    keys = torch.arange(start, total, device=device)
    queries = torch.arange(total - width, total, device=device)[:, None]
    visible = keys <= queries
    if total > window:
        visible &= keys > queries - window
    visible = visible[None, None]
    if mask is not None:
        # A query that is only padding sees itself, so that its attention is a number.
        visible = (visible & mask[:, None, None, start:].bool()) | (keys == queries)
    return _Sight(start, additive_mask(visible, dtype), False)
