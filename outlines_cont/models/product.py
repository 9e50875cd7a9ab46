"""`Product`: a product by a weight of a network, by the faster one of PyTorch's libraries. On a processor with AVX-512 that is not Intel's,
MKL runs its kernels for AVX2; oneDNN takes half as long for several tokens, and two thirds for one token where the weight is large.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

_CPU_INFO = Path("/proc/cpuinfo")
# From how many multiplications on oneDNN is faster: its calls take longer, and up to two tokens wait for the weight to be read.
_MANY = 2**22
_FEW_TOKENS = 2
_LARGE = 2**23


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A product by a weight, given as (inputs, outputs), and a bias; None for none.

    Attributes:
        rows: (outputs, inputs), the weight as oneDNN takes it.
        many: from how many tokens on oneDNN is faster.
    """

    weight: Tensor
    bias: Tensor | None
    rows: Tensor = field(init=False)
    many: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", self.weight.t())
        object.__setattr__(self, "many", _many(self.weight))

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """Return (N, outputs) of (N, inputs); they are written to `out` where MKL multiplies, as oneDNN makes a tensor of its own."""
        if x.shape[0] >= self.many:
            return _by_onednn(x, self.rows, self.bias)
        if self.bias is None:
            return torch.mm(x, self.weight, out=out)
        return torch.addmm(self.bias, x, self.weight, out=out)

    def add_to(self, x: Tensor, inner: Tensor, scale: float) -> Tensor:
        """Add `scale` times the product of (N, inputs) to (N, outputs) `x`, and return it."""
        if x.shape[0] >= self.many:
            return x.add_(_by_onednn(inner, self.rows, self.bias), alpha=scale)
        x.addmm_(inner, self.weight, alpha=scale)
        return x if self.bias is None else x.add_(self.bias, alpha=scale)


@cache
def prefers_onednn() -> bool:
    """Return whether oneDNN uses more of this processor's instructions than MKL, which uses AVX-512 on Intel's only."""
    has_both: bool = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    has_both = has_both and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # no public function of PyTorch
    if has_both and torch.backends.cpu.get_cpu_capability() == "AVX512":
        with suppress(OSError):  # not on every system
            return "GenuineIntel" not in _CPU_INFO.read_text(encoding="utf-8")
    return False


def _many(weight: Tensor) -> int:
    """Return from how many tokens on oneDNN multiplies by a weight faster than MKL."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not prefers_onednn():
        return sys.maxsize
    few = -(-_LARGE // weight.numel())
    return few if few <= _FEW_TOKENS else max(-(-_MANY // weight.numel()), _FEW_TOKENS + 1)


def _by_onednn(x: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, rows, bias, "none", [], "")
    return found
