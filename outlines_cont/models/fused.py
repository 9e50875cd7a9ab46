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
from torch import Tensor
from torch.nn import functional

from outlines_cont.device import upload
from outlines_cont.kv.attention import additive_mask, prefix_attention
from outlines_cont.kv.growing import Tails
from outlines_cont.models.decoder_family import DecoderLayer, Norm, NotFused, read_decoder
from outlines_cont.models.joined import WeightsWatch
from outlines_cont.models.product import Product

# The positions of a new rotary table; a longer one is twice as long as is needed.
_POSITIONS = 1024
_DECODERS: WeakKeyDictionary[Any, FusedDecoder] = WeakKeyDictionary()


def fused_decoder(network: Any) -> FusedDecoder:
    """Return the fused forward of a network, whose weights are joined for it: their storage changes, not their values.

    Raises `NotFused` with the reason where there is none. Cost: a copy of most weights, layer by layer, the first time.
    """
    known = _DECODERS.get(network)
    if known is None or known.change() is not None:
        known = _DECODERS[network] = FusedDecoder(network)
    return known


@dataclass(frozen=True, slots=True, eq=False)
class _Sight:
    """What the queries of a forward see in layers of one kind: columns from `start` on, under an additive mask or causally."""

    start: int
    mask: Tensor | None
    is_causal: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """The rotation of the heads of each token: (N, 1, D) factors of the heads, and of their halves in the other order."""

    cos: Tensor
    sin: Tensor


class FusedDecoder:
    """A decoder of which every layer runs in a few operators. It shares the memory of the network's weights, and does not keep it alive."""

    def __init__(self, network: Any) -> None:
        self._decoder = decoder = read_decoder(network)
        self._watch = WeightsWatch(network)
        self._both = decoder.heads + decoder.key_heads
        self._groups = decoder.heads // decoder.key_heads
        self._ropes = {layer.rope for layer in decoder.layers}
        self._windows = {layer.window for layer in decoder.layers}
        self._tables: dict[str, Tensor] = {}
        self._swap: Tensor | None = None
        reason = self.change()
        if reason is not None:
            raise NotFused(reason)

    def change(self) -> str | None:
        """Return what has changed in the network, so that transformers has to run it; None for nothing."""
        return self._watch.change()

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
        sights = {window: _sight(mask, input_ids, tails, window, x.dtype) for window in self._windows}
        tails.begin(len(decoder.layers), x.new_empty((shape[0], decoder.key_heads, shape[1], decoder.size)))
        for index, layer in enumerate(decoder.layers):
            x = self._attention(x, index, shape, turns[layer.rope], sights[layer.window], tails)
            if index == len(decoder.layers) - 1:
                x = _wanted(x, shape, columns)
            x = self._feed_forward(x, layer)
        x = decoder.norm(x)
        logits = decoder.head(x).view(shape[0], len(columns), -1)
        if decoder.logits_scale != 1:
            logits = logits * decoder.logits_scale
        cap = decoder.logits_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _attention(
        self, x: Tensor, index: int, shape: torch.Size, turn: _Turn | None, sight: _Sight, tails: Tails
    ) -> Tensor:
        layer = self._decoder.layers[index]
        before, after, _, _ = layer.norms
        rows, width = shape
        heads = self._heads(x if before is None else before(x), layer, turn)
        pair = heads.narrow(1, self._decoder.heads, 2 * self._decoder.key_heads)
        pair = pair.view(rows, width, 2, self._decoder.key_heads, -1).permute(2, 0, 3, 1, 4)
        keys, values = tails.write_pair(index, pair)
        query = heads.narrow(1, 0, self._decoder.heads).view(rows, width, self._decoder.heads, -1).transpose(1, 2)
        if sight.start:
            keys, values = keys[:, :, sight.start :], values[:, :, sight.start :]
        if tails.is_ours or x.device.type != "cpu":
            out, _ = prefix_attention(layer.attention, query, keys, values, sight.mask, scaling=layer.scale)
        else:
            out = self._attend(query, keys, values, sight, layer.scale)
        return self._add(x, out.reshape(rows * width, -1), layer.output, after)

    def _heads(self, x: Tensor, layer: DecoderLayer, turn: _Turn | None) -> Tensor:
        """Return (N, H + 2 Hk, D) queries, keys and values."""
        decoder = self._decoder
        flat = layer.qkv(x)
        heads = flat.view(x.shape[0], -1, decoder.size)
        if layer.head_norms is not None:
            parts, unit = (flat, decoder.size) if layer.norms_whole else (heads, 1)
            sizes = [count * unit for count in (decoder.heads, decoder.key_heads, decoder.key_heads)]
            query, keys, values = torch.split_with_sizes(parts, sizes, 1)
            norm_query, norm_keys = layer.head_norms
            heads = torch.cat([norm_query(query), norm_keys(keys), values], 1).view(heads.shape)
        if turn is not None:
            turned = heads.narrow(1, 0, self._both)
            swapped = turned.roll(decoder.size // 2, -1) if self._swap is None else turned.index_select(-1, self._swap)
            turned.mul_(turn.cos).addcmul_(swapped, turn.sin)
        return heads

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, sight: _Sight, scale: float) -> Tensor:
        """Return (R, Q, H, D), the attention of (R, H, Q, D) queries on a CPU."""
        rows, heads, width, size = query.shape
        has_groups = self._groups > 1
        if has_groups and width == 1:
            # The query heads of a key head become its queries, so that its keys are read once.
            query, has_groups = query.reshape(rows, keys.shape[1], self._groups, size), False
        out = functional.scaled_dot_product_attention(
            query, keys, values, sight.mask, is_causal=sight.is_causal, scale=scale, enable_gqa=has_groups
        )
        return out.reshape(rows, 1, heads, size) if width == 1 else out.transpose(1, 2)

    def _feed_forward(self, x: Tensor, layer: DecoderLayer) -> Tensor:
        _, _, before, after = layer.norms
        inner = layer.up(x if before is None else before(x))
        if self._decoder.is_gated:
            gate, up = inner.chunk(2, -1)
            inner = layer.activation(gate).mul_(up)
        else:
            inner = layer.activation(inner)
        return self._add(x, inner, layer.down, after)

    def _add(self, x: Tensor, inner: Tensor, product: Product, norm: Norm | None) -> Tensor:
        """Return `x` plus a product, which is normed before where there is a norm."""
        scale = self._decoder.residual_scale
        if norm is not None:
            return torch.add(x, norm(product(inner)), alpha=scale)
        return product.added(x, inner, scale)

    def _turn(self, name: str | None, positions: Tensor, stop: int) -> _Turn | None:
        """Return the rotation of tokens at `positions`, all below `stop`, in layers with a rotary table; to read them would be a sync."""
        if name is None:
            return None
        table = self._tables.get(name)
        if table is None or len(table) < stop:
            table = self._tables[name] = self._table(name, max(2 * stop, _POSITIONS), positions.device)
        return _Turn(*table.index_select(0, positions).unbind(1))

    def _table(self, name: str, length: int, device: torch.device) -> Tensor:
        """Return (length, 2, 1, D) factors of a rotary embedding: of the heads, and of their halves in the other order."""
        decoder = self._decoder
        rotary: Any = decoder.rotary
        options = {"layer_type": name} if hasattr(rotary, "layer_types") else {}
        like = decoder.embedding[:1, None]
        found = rotary(like, torch.arange(length, device=device)[None], **options)
        cos, sin = (angles[0].to(like.dtype) for angles in found)
        turned = cos.shape[-1]
        half = turned // 2
        sin = torch.cat([-sin[:, :half], sin[:, half:]], 1)
        rest = decoder.size - turned
        if rest:
            order = torch.arange(decoder.size, device=device)
            self._swap = torch.cat([order[half:turned], order[:half], order[turned:]])
        table = torch.stack([functional.pad(cos, (0, rest), value=1.0), functional.pad(sin, (0, rest))], 1)
        return table.unsqueeze(2)


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
    if tails.is_ours:
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
