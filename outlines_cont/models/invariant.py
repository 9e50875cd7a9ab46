"""`InvariantDecoder`: the forward of a decoder on a CPU whose results do not depend on the shape of the batch, bit by bit: not on other
rows, on padding, or on how a text was cut into chunks. Sums of floats depend on their order, which libraries choose by the shapes of what
they multiply; so here all shapes are the same, always: products have 32 rows, attention 32 queries and blocks of 512 keys of one row, from
its first token on. What lacks is padding.

What remains to be true of the libraries, that a row of a product depends neither on its place among the 32 nor on the others, is measured
by `capability.is_invariant` when a model is opened. Prefixes are not shared in place, as their parts would be summed apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from outlines_cont.kv.growing import Tails
from outlines_cont.models.decoder_family import DecoderLayer, NotFused
from outlines_cont.models.fused import FusedDecoder

# The rows of every product, and the queries of every attention, of several heads that read the same keys.
_ROWS = 32
# The keys that PyTorch's attention for CPUs sums at a time.
_KEYS = 512
# Up to so many elements PyTorch does not split an operator between threads, where it would treat those at the seams otherwise.
_UNSPLIT = 32_768

_DECODERS: WeakKeyDictionary[Any, InvariantDecoder] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """What a row of the batch has: the columns of its tokens, as a slice where there is no gap, and the tokens that each query sees.

    Attributes:
        columns: (L,) int64, or a slice.
        length: L.
        queries: which of the Q columns that are fed are tokens.
        ranks: for each of them its index among the tokens of the row.
    """

    columns: slice | Tensor
    length: int
    queries: list[int]
    ranks: list[int]

    @classmethod
    def of(cls, visible: Any, width: int) -> _Row:
        """Return the row of (C + Q,) booleans."""
        columns = np.flatnonzero(visible)
        first = len(visible) - width
        ranks = np.flatnonzero(columns >= first)
        is_range = len(columns) > 0 and columns[-1] - columns[0] + 1 == len(columns)
        chosen = slice(int(columns[0]), int(columns[-1]) + 1) if is_range else torch.from_numpy(columns)
        return cls(chosen, len(columns), (columns[ranks] - first).tolist(), ranks.tolist())


def invariant_decoder(network: Any, around: Sequence[nn.Module] = ()) -> InvariantDecoder:
    """Return the deterministic forward of a network, whose weights are joined for it; `NotFused` with the reason if there is none.

    For `around` see `fused_decoder`.
    """
    known = _DECODERS.get(network)
    if known is None or known.change() is not None:
        known = _DECODERS[network] = InvariantDecoder(network, around)
    return known


class InvariantDecoder(FusedDecoder):
    """A decoder whose logits of a token depend on the tokens before it alone. It takes the time of 32 tokens for one."""

    def __init__(self, network: Any, around: Sequence[nn.Module] = ()) -> None:
        super().__init__(network, around)
        device = self._decoder.embedding.device
        if device.type != "cpu":
            raise NotFused(f"weights on {device}; a deterministic forward is one of the CPU")

    def __call__(
        self, input_ids: Tensor, mask: Tensor | None, position_ids: Tensor, tails: Tails, columns: Sequence[int]
    ) -> Tensor:
        """Feed (R, Q) ids on top of the tails and return (R, len(columns), V) logits; see `LanguageModel.forward`."""
        decoder, (rows, width) = self._decoder, input_ids.shape
        if tails.is_ours:
            raise AssertionError("a deterministic model shares no prefix in place")
        positions = _padded(position_ids.reshape(-1))
        x = functional.embedding(_padded(input_ids.reshape(-1)), decoder.embedding)
        if decoder.embedding_scale != 1:
            x = x * decoder.embedding_scale
        if decoder.positions is not None:
            x = x + functional.embedding(positions, decoder.positions)
        turns = {name: self._turn(name, positions, tails.num_columns + width) for name in self._ropes}
        total = tails.length + width
        visible = np.ones((rows, total), dtype=bool) if mask is None else mask.numpy().astype(bool)
        seen = [_Row.of(line, width) for line in visible]
        size = -(-max(row.length for row in seen) // _KEYS) * _KEYS
        # Keys and values of the rows from their first token on; behind them zeros.
        space = x.new_zeros((2, rows, decoder.key_heads, size, decoder.size))
        count = rows * width
        for index, layer in enumerate(decoder.layers):
            heads = self._heads_of(x, layer, None if layer.rope is None else turns[layer.rope])
            new = heads[:count].view(rows, width, -1, decoder.size)
            pair = new[:, :, decoder.heads :].view(rows, width, 2, decoder.key_heads, -1).permute(2, 0, 3, 1, 4)
            if index == 0:
                tails.begin(len(decoder.layers), pair[0])
            stored = tails.write_pair(index, pair)
            out = x.new_zeros((len(x), decoder.heads * decoder.size))
            for number, row in enumerate(seen):
                for kept, of_layer in zip(space, stored, strict=True):
                    kept[number, :, : row.length] = of_layer[number][:, row.columns]
                line = out[number * width : (number + 1) * width]
                self._attend(line, new[number, :, : decoder.heads], space[:, number : number + 1], row, layer)
            for part in _tiles(x):
                self._add(x[part], out[part], layer.output, layer.norms[1])
            if index == len(decoder.layers) - 1:
                x = _padded(x[:count].view(rows, width, -1)[:, list(columns)].flatten(0, 1))
            for part in _tiles(x):
                self._feed(x[part], layer)
        logits = torch.cat([decoder.head(decoder.norm(x[part])) for part in _tiles(x)])[: rows * len(columns)]
        if decoder.logits_scale != 1:
            logits = logits * decoder.logits_scale
        cap = decoder.logits_cap
        if cap is not None:
            logits = torch.stack([torch.tanh(line / cap) * cap for line in logits])
        return logits.view(rows, len(columns), -1)

    def _heads_of(self, x: Tensor, layer: DecoderLayer, turn: Any) -> Tensor:
        """Return (N, H + 2 Hk, D) queries, keys and values, turned."""
        decoder = self._decoder
        before = layer.norms[0]
        flat = torch.cat([layer.qkv(x[part] if before is None else before(x[part])) for part in _tiles(x)])
        if layer.head_norms is not None:
            flat = torch.cat([self._normed(flat[part], layer) for part in _tiles(x)])
        heads = flat.view(len(x), -1, decoder.size)
        if turn is None:
            return heads
        num_turned = turn.cos.shape[-1]
        turned = heads[:, : decoder.heads + decoder.key_heads, :num_turned]
        low, high = turned.chunk(2, -1)
        # Products and sums apart, each rounded: operators that do both may round once or twice, by the place of an element.
        other = torch.cat([high * turn.low, low * turn.high], -1)
        heads[:, : decoder.heads + decoder.key_heads, :num_turned] = turned * turn.cos + other
        return heads

    def _normed(self, flat: Tensor, layer: DecoderLayer) -> Tensor:
        """Return queries, keys and values with the norms of their heads."""
        decoder = self._decoder
        assert layer.head_norms is not None
        parts, unit = (flat, decoder.size) if layer.norms_whole else (flat.view(len(flat), -1, decoder.size), 1)
        sizes = [count * unit for count in (decoder.heads, decoder.key_heads, decoder.key_heads)]
        query, keys, values = torch.split_with_sizes(parts, sizes, 1)
        norm_query, norm_keys = layer.head_norms
        return torch.cat([norm_query(query), norm_keys(keys), values], 1).view(flat.shape)

    def _attend(self, out: Tensor, query: Tensor, pair: Tensor, row: _Row, layer: DecoderLayer) -> None:
        """Write the attention of (Q, H, D) queries of a row over its keys and values (2, 1, Hk, P, D) to `out` (Q, H * D)."""
        decoder = self._decoder
        groups, key_heads = decoder.heads // decoder.key_heads, decoder.key_heads
        step = max(_ROWS // groups, 1)
        num_rows = -(-step * groups // _ROWS) * _ROWS
        for start in range(0, len(row.queries), step):
            places, ranks = row.queries[start : start + step], row.ranks[start : start + step]
            size, count = -(-(ranks[-1] + 1) // _KEYS) * _KEYS, len(places) * groups
            folded = query.new_zeros((1, key_heads, num_rows, decoder.size))
            part = query[places].view(-1, key_heads, groups, decoder.size).transpose(0, 1)
            folded[0, :, :count] = part.reshape(key_heads, count, -1)
            ends = torch.tensor(ranks, device="cpu").repeat_interleave(groups)
            ends = functional.pad(ends, (0, num_rows - count))[:, None]
            keys = torch.arange(size, device="cpu")
            hidden = keys > ends
            if layer.window is not None:
                hidden |= keys <= ends - layer.window
            mask = query.new_zeros((1, 1, num_rows, size)).masked_fill_(hidden, -torch.inf)
            found, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                folded, pair[0, :, :, :size], pair[1, :, :, :size], 0.0, False, attn_mask=mask, scale=layer.scale
            )
            found = found[0, :, :count].reshape(key_heads, len(places), -1).transpose(0, 1)
            out[places] = found.reshape(len(places), -1)

    def _feed(self, x: Tensor, layer: DecoderLayer) -> None:
        """Add what the feed-forward network gives to 32 rows."""
        _, _, before, after = layer.norms
        inner = layer.up(x if before is None else before(x))
        gate, up = inner.chunk(2, -1) if self._decoder.is_gated else (inner, None)
        step = 1 << (max(_UNSPLIT // gate.shape[1], 1).bit_length() - 1)
        active = torch.cat([layer.activation(gate[i : i + step]) for i in range(0, _ROWS, step)])
        self._add(x, active if up is None else active.mul_(up), layer.down, after)


def _padded(values: Tensor) -> Tensor:
    """Return (N, ...) with zeros behind, so that N is a multiple of 32."""
    more = -len(values) % _ROWS
    return torch.cat([values, values.new_zeros((more, *values.shape[1:]))]) if more else values


def _tiles(x: Tensor) -> Iterator[slice]:
    """Yield the parts of 32 rows."""
    return (slice(start, start + _ROWS) for start in range(0, len(x), _ROWS))
