"""`Rotary`: moves cached tokens to other positions without feeding them again, by rotating their keys (RoPE); for `drop(mode="shift")`,
where it is an approximation: values, and what deeper layers computed from removed tokens, stay. Other position embeddings raise
`UnsupportedModel`.

Only plain rotary embeddings (Su et al. 2021, arXiv:2104.09864, in the form that rotates the two halves of a head) are accepted, and a
probe must find that the keys of every layer rotate so. A rotation per layer type, rotations that change with the length of the text,
interleaved or partial ones, and compressed keys are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from outlines_cont.errors import UnsupportedModel
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.row import RowKV
from outlines_cont.models.capability import tolerance

_FIXED = ("default", "linear", "llama3", "yarn")
_PROBE_TOKENS, _PROBE_SHIFT = 6, 9
_ADVICE = 'Use `mode="recompute"`, which is exact for every model.'


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """The rotation of one model: the angle of each pair of a key per position, in radians; (D / 2,) float64 on the CPU."""

    frequencies: torch.Tensor

    @classmethod
    def of_model(cls, model: LanguageModel) -> Rotary:
        """Return the rotation of `model`, verified by a probe that runs once; `UnsupportedModel` if its keys do not rotate so."""
        if "rotary" not in model.memo:
            model.memo["rotary"] = _probed(model)
        found = model.memo["rotary"]
        if isinstance(found, Rotary):
            return found
        raise UnsupportedModel(f"expected plain rotary positions to shift tokens, but {found}. {_ADVICE}")

    def turned(self, keys: torch.Tensor, by: int) -> torch.Tensor:
        """Return (..., D) keys as they would be `by` positions later; `by` may be negative."""
        angles = (self.frequencies * by).repeat(2)
        cos, sin = (table.to(device=keys.device, dtype=keys.dtype) for table in (angles.cos(), angles.sin()))
        first, second = keys.chunk(2, dim=-1)
        return keys * cos + torch.cat((-second, first), dim=-1) * sin

    def closed_up(self, kv: RowKV, start: int, stop: int, model: LanguageModel) -> RowKV:
        """Return the keys and values without the tokens from `start` to `stop`: what follows moves up, its values unchanged.

        Cost: a copy of the keys and values from `stop` on; what is before `start` is shared.
        """
        head = kv[:start].parts if start else ()
        layers = [
            (self.turned(pair[0][:, stop:], start - stop), pair[1][:, stop:]) if pair else None for pair in kv.layers()
        ]
        return RowKV((*head, *RowKV.of_layers(model.kv_store, layers).parts))


def _probed(model: LanguageModel) -> Rotary | str:
    """Return the one rotation in the model's modules, if it turns the keys of tokens at other positions; else why it cannot be used."""
    network: Any = getattr(model, "hugging_face", None)
    if network is None or model.is_recurrent:
        return f"the cache of {model!r} is not one of keys and values"
    modules = [module for module in network.modules() if getattr(module, "inv_freq", None) is not None]
    if len({id(module) for module in modules}) != 1:
        return f"{type(network).__name__} has {len(modules) or 'no'} rotations of its keys"
    kind = getattr(modules[0], "rope_type", "default")
    if kind not in _FIXED:
        return f"the rotation of {type(network).__name__} ({kind!r}) changes with the length of the text"
    rotary = Rotary(modules[0].inv_freq.detach().double().cpu())
    ids = torch.randint(
        model.vocab_size, (1, _PROBE_TOKENS), generator=torch.Generator("cpu").manual_seed(0), device="cpu"
    )
    pairs = zip(_keys(model, ids, 0), _keys(model, ids, _PROBE_SHIFT), strict=True)
    for index, (here, there) in enumerate(pairs):
        if here.shape[-1] != 2 * len(rotary.frequencies):
            return f"the keys of {model!r} turn in part only"
        error = (rotary.turned(here, _PROBE_SHIFT) - there).abs().max() / there.std().clamp_min(1e-30)
        # A comparison with NaN is false.
        if not float(error) < tolerance(model.dtype):
            return f"the keys of {model!r} turn in another way (layer {index})"
    return rotary


def _keys(model: LanguageModel, ids: torch.Tensor, first: int) -> list[torch.Tensor]:
    """Return the keys of every layer, of tokens whose positions begin with `first`."""
    cache = DynamicCache()
    positions = torch.arange(first, first + ids.shape[1], device=model.device)[None]
    model.forward(ids.to(model.device), torch.ones_like(ids).to(model.device), positions, cache, [ids.shape[1] - 1])
    keys = [getattr(layer, "keys", None) for layer in cache.layers]
    return [tensor for tensor in keys if tensor is not None]
