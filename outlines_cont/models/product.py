"""`Product`: a product by a weight of a network, by the faster one of PyTorch's libraries. On a processor with AVX-512 that is not Intel's,
MKL runs its kernels for AVX2; oneDNN takes half as long for several tokens, and two thirds for one token where the weight is large.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

_CPU_INFO = Path("/proc/cpuinfo")
# From how many multiplications on oneDNN is faster: its calls take longer, and up to two tokens wait for the weight to be read.
_MANY = 2**20
_FEW_TOKENS = 2
_LARGE = 2**23


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product by a weight, given as (inputs, outputs), and a bias; None for none.

    Attributes:
        rows: (outputs, inputs), the weight where oneDNN may multiply by it; None on other processors and devices, and for other types.
    """

    weight: Tensor
    bias: Tensor | None
    rows: Tensor | None = field(init=False)

    def __post_init__(self) -> None:
        weight = self.weight
        is_plain = weight.device.type == "cpu" and weight.dtype == torch.float32
        object.__setattr__(self, "rows", weight.t() if is_plain and prefers_onednn() else None)

    def __call__(self, x: Tensor) -> Tensor:
        """Return (N, outputs) of (N, inputs)."""
        if self.rows is not None and _is_large(len(x), self.rows):
            return _by_onednn(x, self.rows, self.bias)
        return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)

    def added(self, x: Tensor, inner: Tensor, scale: float) -> Tensor:
        """Return (N, outputs) `x` plus `scale` times the product of (N, inputs)."""
        if self.rows is not None and _is_large(len(x), self.rows):
            return torch.add(x, _by_onednn(inner, self.rows, self.bias), alpha=scale)
        x = torch.addmm(x, inner, self.weight, alpha=scale)
        return x if self.bias is None else x.add_(self.bias, alpha=scale)


@cache
def prefers_onednn() -> bool:
    """Return whether oneDNN uses more of this processor's instructions than MKL, which uses AVX-512 on Intel's only."""
    has_both: bool = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if has_both and torch.backends.cpu.get_cpu_capability() == "AVX512":
        with suppress(OSError):  # not on every system
            return "GenuineIntel" not in _CPU_INFO.read_text(encoding="utf-8")
    return False


def _is_large(num_tokens: int, rows: Tensor) -> bool:
    return num_tokens * rows.numel() >= (_MANY if num_tokens > _FEW_TOKENS else _LARGE)


def _by_onednn(x: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, rows, bias, "none", [], "")
    return found
