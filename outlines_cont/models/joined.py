"""`joined`: several weights as one tensor, whose memory they share from then on, so that one product takes the place of theirs.

`WeightsWatch` tells whether a network is still as it was read: the same modules, weights at the same addresses, no hooks, no patched
methods. It does not look at values: those that are edited in place are seen by whoever shares their memory. `forward_mark` differs after
a change of anything by which a network gives other keys and values. `evaluating`: forwards in evaluation mode, whatever mode it is in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from operator import contains, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.dlpack import from_dlpack
from torch.utils.weak import WeakTensorKeyDictionary

_END = object()
_WHOLES: Any = WeakTensorKeyDictionary()
"""The tensors that were made, by the first of their weights."""
_KNOWN_HOMES = ("torch.", "transformers.")
_PLAIN = (bool, float, str, type(None))  # integers may count steps or lengths


def joined(weights: Sequence[Tensor]) -> Tensor:
    """Return the rows of some weights as one tensor, and move each weight into its part of it. Values, shapes and types are unchanged.

    Weights that are joined already, as another network has the same layers, stay where they are.

    Each weight keeps a storage of its own (over a part of the memory), as other libraries refuse to save parameters that share one.

    Cost: a copy; until it is done the memory of these weights is taken twice.
    """
    if len(weights) == 1:
        return weights[0].detach()
    known: Tensor | None = _WHOLES.get(weights[0])
    if known is not None and len(known) == sum(map(len, weights)) and are_adjacent(known, weights):
        return known
    whole: Tensor = torch.cat([weight.detach() for weight in weights])
    _WHOLES[weights[0]] = whole
    stop = 0
    for weight in weights:
        start, stop = stop, stop + len(weight)
        weight.data = from_dlpack(whole[start:stop])
    return whole


class WeightsWatch:
    """The modules and weights of a network when it was read, with those of the modules `around` it, of which only some were read.

    It does not keep the network itself alive.
    """

    def __init__(self, network: nn.Module, around: Sequence[nn.Module] = ()) -> None:
        inside = list(network.modules())
        modules = [*around, *inside]
        self._hooks = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self._own = [vars(module) for module in modules]
        tables = [
            table for module in inside for table in (module._modules, module._parameters, module._buffers) if table
        ]
        tables += [module._modules for module in around]
        # Views of the tables: their members now, and a last one, so that none may be missing.
        self._tables: list[Any] = [table.values() for table in tables] + [(_END,)]
        self._members = [*chain.from_iterable(self._tables)]
        self._weights = [member for member in self._members if isinstance(member, Tensor)]
        self._addresses = self._addresses_now()

    def change(self) -> str | None:
        """Return what has changed; None for nothing. Cost: 0.1 us for each module and weight."""
        if any(self._hooks) or nn.modules.module._global_forward_hooks or nn.modules.module._global_forward_pre_hooks:
            return "hooks are registered"
        if any(map(contains, self._own, repeat("forward"))):
            return "a method of a module is replaced"
        is_same = all(map(is_, chain.from_iterable(self._tables), self._members))
        if not is_same or self._addresses_now() != self._addresses:
            return "modules or weights were replaced"
        return None

    def _addresses_now(self) -> list[int]:
        return list(map(Tensor.data_ptr, self._weights))


def are_adjacent(whole: Tensor, weights: Iterable[Tensor]) -> bool:
    """Return whether some weights lie behind each other in the memory of `whole`."""
    address = whole.data_ptr()
    for weight in weights:
        if weight.data_ptr() != address:
            return False
        address += weight.nbytes
    return True


def forward_mark(network: nn.Module) -> list[Any]:
    """Return a list that differs after a change of the network: identity, address and version of every parameter and buffer; hooks,
    replaced methods `forward` of modules; flags, names and factors of modules that are neither of torch nor of transformers. The mode of
    training is none of them, as forwards are in evaluation mode.

    It does not detect a change through `parameter.data`, which has a version of its own, or of an attribute of transformers' modules.
    Cost: 0.5 us for each module and parameter; nothing is read from the device.
    """
    marks: list[Any] = [*nn.modules.module._global_forward_hooks, *nn.modules.module._global_forward_pre_hooks]
    below = [network]
    while below:
        module = below.pop()
        below += [child for child in module._modules.values() if child is not None]
        for tensors in (module._parameters, module._buffers):
            for tensor in tensors.values():
                if tensor is not None:
                    marks.append((id(tensor), tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version))
        own = vars(module)
        if module._forward_hooks or module._forward_pre_hooks or "forward" in own:
            marks.append((*module._forward_hooks, *module._forward_pre_hooks, own.get("forward")))
        if not type(module).__module__.startswith(_KNOWN_HOMES):
            named = [(name, _plain(value)) for name, value in own.items() if name[:2] != "__" and name != "training"]
            marks.append(named)
    return marks


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Have all modules in evaluation mode, in which nothing is dropped at random, and leave them as they were.

    A program may generate with a network that it trains. Cost: 0.2 us for each module.
    """
    training = [module for module in network.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _plain(value: Any) -> Any:
    """Return a copy of a value that is made of flags, factors and names; None for another."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return [(key, _plain(one)) for key, one in value.items() if isinstance(key, _PLAIN)]
    return [*map(_plain, value)] if isinstance(value, (list, tuple, set, frozenset)) else None
