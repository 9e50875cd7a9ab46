"""What a decode step asks of a CUDA device, counted on a machine without one: operators, waits of the host, copies, attention plans.

    python -m benchmarks.device_proxy [--case NAME] [--rows 64] [--depths 2 32] [--paged] [--where] [--json FILE]

Memory is *on the device* because it is said to be: `Proxy` notes storages, runs every operator on the CPU, and lets `tensor.device` be
`cuda:0` for those, so that the code that is measured takes its branches for CUDA, with true numbers. A tensor of the host among them is an
error, as on a GPU. Counted are

    operators  calls that launch a kernel; views and bare allocations launch none, a composite operator counts by its parts
    syncs      the host reads a value: `item`, `tolist`, a copy to the host, or an index of unknown size, such as `nonzero`
    uploads    copies to the device for which the host waits, as they are not `non_blocking`, or not from pinned memory
    stalls     syncs and uploads while kernels are queued, so that the host cannot run ahead
    plans      attention by cuDNN with sizes that are new: it builds a plan for each, in 20 to 50 ms. PyTorch takes cuDNN first for half
               precision on an H100 (2.11 and later)
    copied     bytes that copies, gathers and fills have written

A step begins with a forward of the wrapped model. Operators in the forward that come with each further layer are those *per layer*, told by
two models of different depths, so that no hook is needed; `rest` is what remains of the forward, `outside` all around it. Operators are the
mean of the steps, the others those of the worst. Not counted: the time that a kernel takes, and work in other threads.

With `--paged` rows have slots of a pool, as on CUDA with Triton: a kernel of attention is two operators, and a step that is a graph is one.

The models are narrow, but their memory is divided into tensors as that of a model of 8 billion parameters with 32 layers would be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.rig import byte_tokenizer
from benchmarks.table import markdown
from outlines_cont.kv import buffer
from outlines_cont.kv.paged.attention import plain_paged_attend

_CUDA = torch.device("cuda:0")
_UNLAUNCHED = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "lift_fresh",
    "detach",
    "alias",
}
_COPYING = {
    "_to_copy", "arange", "cat", "clone", "copy_", "fill_", "full", "full_like", "gather", "index", "index_copy", "index_put_",
    "index_select", "masked_fill", "masked_fill_", "new_full", "new_zeros", "ones", "repeat", "scatter_", "stack", "zero_", "zeros",
    "zeros_like",
}  # fmt: skip
# The result has a size, or is a number, that the host must know.
_READING = {"_local_scalar_dense", "nonzero", "masked_select", "bincount", "equal", "_unique2", "unique_dim"}
# One kernel on a GPU, several operators on a CPU.
_WHOLE = {"rms_norm", "layer_norm", "_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention"}
_INDEXING = {"index", "index_put_", "_index_put_impl_", "index_put"}


@dataclass
class Tally:
    """What was counted in one step."""

    forward: int = 0
    outside: int = 0
    syncs: int = 0
    uploads: int = 0
    stalls: int = 0
    plans: int = 0
    copied: int = 0
    names: Counter[str] = field(default_factory=Counter)


class Proxy:
    """The device: which memory is on it, and what was asked of it. Used as a context manager, in one thread.

    Attributes:
        steps: the tallies, one per step; the first is of what came before any.
        waits: how often each line of code has stalled the host.
        has_cudnn: whether PyTorch prefers cuDNN.
    """

    def __init__(self, *, has_cudnn: bool = True) -> None:
        self.has_cudnn = has_cudnn
        self.steps = [Tally()]
        self.waits: Counter[str] = Counter()
        self.in_forward = self.is_paused = False
        self._queued = 0
        self._resident: dict[int, StorageWeakRef] = {}
        self._pinned: dict[int, StorageWeakRef] = {}
        self._plans: set[object] = set()
        self._modes = (_Functions(self), _Operators(self))

    def __enter__(self) -> Proxy:
        for mode in self._modes:
            mode.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*exception)  # type: ignore[no-untyped-call]

    # -- memory

    def holds(self, tensor: object) -> bool:
        """Whether a tensor is on the device."""
        return isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata in self._resident

    def place(self, found: Any) -> Any:
        """Say that the tensors of a result, or of a module, are on the device."""
        is_module = isinstance(found, torch.nn.Module)
        for tensor in [*found.parameters(), *found.buffers()] if is_module else _tensors(found):
            _note(self._resident, tensor)
        return found

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Say that a tensor of the host is in pinned memory."""
        _note(self._pinned, tensor)
        return tensor

    # -- counts

    def restart(self) -> None:
        """Begin to count, as if no length had been seen before."""
        self.steps, self.waits = [Tally()], Counter()
        self._plans.clear()

    def launch(self, name: str, copied: int = 0) -> None:
        """Count an operator."""
        if not self.is_paused:
            step = self.steps[-1]
            step.names[name] += 1
            step.copied += copied
            if self.in_forward:
                step.forward += 1
            else:
                step.outside += 1
            self._queued += 1

    def wait(self, kind: str) -> None:
        """Count a wait of the host, for `syncs` or `uploads`."""
        step = self.steps[-1]
        setattr(step, kind, getattr(step, kind) + 1)
        if self._queued:
            step.stalls += 1
            self.waits[_caller()] += 1
        self._queued = 0

    def upload(self, source: torch.Tensor, *, non_blocking: bool) -> None:
        """Count a copy of a tensor of the host to the device."""
        if not (non_blocking and source.untyped_storage()._cdata in self._pinned):
            self.wait("uploads")

    def moved(self, source: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        """Return a copy of a tensor on the other side."""
        copy = source.clone()
        if device.type == "cpu":
            self.wait("syncs")
            self._resident.pop(copy.untyped_storage()._cdata, None)
            return copy
        self.upload(source, non_blocking=non_blocking)
        return self.place(copy)  # type: ignore[no-any-return]

    def attend(self, query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, is_causal: bool) -> None:
        """Count a call of `scaled_dot_product_attention`, whose kernel PyTorch chooses."""
        is_half = query.dtype in (torch.float16, torch.bfloat16)
        if is_half and self.has_cudnn and key.shape[2] > 1 and query.shape[-1] % 8 == 0:
            shapes = [(one.shape, one.stride()) for one in (query, key, mask) if one is not None]
            plan = (*shapes, is_causal, query.dtype)
            self.steps[-1].plans += plan not in self._plans
            self._plans.add(plan)
        if mask is not None and mask.dtype == torch.bool:
            self.launch("mask to numbers", mask.numel() * query.element_size())
        self.launch("attention")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count no operators inside."""
        before, self.is_paused = self.is_paused, True
        try:
            yield
        finally:
            self.is_paused = before


class _Functions(TorchFunctionMode):
    """Calls of Python: what names a device, and what the dispatcher does not see."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self._proxy = proxy

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        proxy, name = self._proxy, getattr(func, "__name__", "")
        first = args[0] if args else None
        if name == "__get__":
            return self._attribute(func, first, args)
        if name in ("to", "cpu", "cuda") and isinstance(first, torch.Tensor):
            return self._to(name, first, args, kwargs)
        if name == "pin_memory":
            return proxy.pin(args[0].clone())
        if name == "numpy" and proxy.holds(first):
            raise TypeError("a tensor on the device has no `numpy`")
        if name == "tolist" and proxy.holds(first):
            proxy.wait("syncs")
        if name in ("tensor", "as_tensor") and isinstance(first, list) and any(map(proxy.holds, first)):
            return torch.stack([one.reshape(()) for one in first])
        if name == "scaled_dot_product_attention" and proxy.holds(first):
            return self._attention(func, args, kwargs)
        if name in _WHOLE and proxy.holds(first):
            proxy.launch(name)
            with proxy.paused():
                return proxy.place(_ATTENTION.get(name, func)(*args, **kwargs))
        if kwargs.pop("pin_memory", False):
            return proxy.pin(func(*args, **kwargs))
        if kwargs.get("device") is not None:
            return self._made(func, name, args, kwargs)
        return func(*args, **kwargs)

    def _attribute(self, func: Any, tensor: Any, args: Any) -> Any:
        if func.__self__ is torch.Tensor.device and self._proxy.holds(tensor):
            return _CUDA
        if func.__self__ is torch.Tensor.is_cuda:
            return self._proxy.holds(tensor)
        return func(*args)

    def _to(self, name: str, source: torch.Tensor, args: Any, kwargs: Any) -> torch.Tensor:
        given = [*args[1:], *kwargs.values()]
        like = next((one for one in given if isinstance(one, torch.Tensor)), None)
        here = _CUDA if self._proxy.holds(source) else torch.device("cpu")
        if like is not None:
            device, dtype = (_CUDA if self._proxy.holds(like) else torch.device("cpu")), like.dtype
        else:
            named = [torch.device(one) for one in given if isinstance(one, str | torch.device)]
            named += [torch.device("cpu" if name == "cpu" else "cuda")] if name != "to" else []
            device = named[0] if named else here
            dtype = next((one for one in given if isinstance(one, torch.dtype)), source.dtype)
        if device.type != here.type and here.type == "cpu":
            source = self._proxy.moved(source, device, bool(kwargs.get("non_blocking")))
        found = source.to(dtype, copy=bool(kwargs.get("copy")))
        return self._proxy.moved(found, device, False) if device.type != here.type and here.type != "cpu" else found

    def _made(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Make a new tensor where `device` says."""
        device = torch.device(kwargs.pop("device"))
        if isinstance(args[0] if args else None, torch.Tensor) and not name.startswith("new_") and "_like" not in name:
            return self._to("to", args[0], args, {"device": device, **kwargs})
        with self._proxy.paused():
            found = func(*args, **kwargs)
        if device.type == "cpu":
            return found.clone() if self._proxy.holds(found) else found
        if name in ("tensor", "as_tensor"):
            return self._proxy.moved(found, device, False)
        if name not in _UNLAUNCHED:
            self._proxy.launch(name, found.nbytes)
        return self._proxy.place(found)

    def _attention(self, func: Any, args: Any, kwargs: Any) -> Any:
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        causal = args[5] if len(args) > 5 else kwargs.get("is_causal", False)
        self._proxy.attend(args[0], args[1], mask, bool(causal))
        with self._proxy.paused():
            return self._proxy.place(func(*args, **kwargs))


class _Operators(TorchDispatchMode):
    """Operators of PyTorch."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # so that the compiler, which nothing here needs, is not imported

    def __init__(self, proxy: Proxy) -> None:
        super().__init__()
        self._proxy = proxy

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        proxy, name = self._proxy, func._schema.name.split("::")[-1]
        given = _tensors((*args, *kwargs.values()))
        if not any(map(proxy.holds, given)):
            return func(*args, **kwargs)
        if name in _READING:
            if name != "_local_scalar_dense":
                proxy.launch(name)
            proxy.wait("syncs")
        elif name not in _WHOLE and _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        hosts = [one for one in given if one.dim() and not proxy.holds(one)]
        if name == "copy_" and hosts:
            return self._copied(func, args, kwargs)
        if hosts and name not in _INDEXING:
            raise RuntimeError(f"{name}: a host tensor of shape {tuple(hosts[0].shape)} among those on the device")
        for host in hosts:
            proxy.upload(host, non_blocking=False)
        if name in _INDEXING and any(one.dtype == torch.bool for one in _tensors(args[1])):
            proxy.wait("syncs")
        found = func(*args, **kwargs)
        outs = _tensors(found)
        is_view = not func._schema.is_mutable and all(map(proxy.holds, outs))
        if outs and not is_view and name not in _UNLAUNCHED | _READING and any(one.numel() for one in outs):
            written = args[2].nbytes if name in ("index_put_", "_index_put_impl_") else sum(one.nbytes for one in outs)
            proxy.launch(name, written if name in _COPYING else 0)
        return found if is_view else proxy.place(found)

    def _copied(self, func: Any, args: Any, kwargs: Any) -> Any:
        target, source = args[:2]
        if self._proxy.holds(target):
            self._proxy.upload(source, non_blocking=bool([*args[2:], *kwargs.values(), False][0]))
        else:
            self._proxy.wait("syncs")
        return func(*args, **kwargs)


def _note(known: dict[int, StorageWeakRef], tensor: torch.Tensor) -> None:
    """Remember the storage of a tensor. The weak reference keeps its address from being used again."""
    if len(known) > 4096:
        for address in [address for address, reference in known.items() if reference.expired()]:
            del known[address]
    storage = tensor.untyped_storage()
    known.setdefault(storage._cdata, StorageWeakRef(storage))


def _tensors(found: Any) -> list[torch.Tensor]:
    """Return the tensors among the arguments or the results of an operator."""
    if isinstance(found, torch.Tensor):
        return [found]
    return [tensor for one in found for tensor in _tensors(one)] if isinstance(found, list | tuple) else []


@cache
def _is_composite(operator: Any) -> bool:
    return bool(operator._can_decompose())


def _caller() -> str:
    """Return the innermost line of code that is neither of PyTorch nor of this file."""
    frame = sys._getframe(1)
    while "/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__:
        assert frame.f_back is not None
        frame = frame.f_back
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-3:])}:{frame.f_lineno}"


def _attended(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any, causal: bool, scale: Any) -> Any:
    """Return attention and the log-sum-exp of its scores, by matrix products."""
    groups = query.shape[1] // key.shape[1]
    key, value = (one.float().repeat_interleave(groups, 1) for one in (key, value))
    scores = query.float() @ key.transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    scores = scores if bias is None else scores + bias
    if causal:
        before = key.shape[2] - query.shape[2]
        scores = scores.masked_fill(~scores.new_ones(scores.shape[-2:], dtype=torch.bool).tril(before), -torch.inf)
    return (scores.softmax(-1) @ value).to(query.dtype), scores.logsumexp(-1)


def _flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float = 0.0, is_causal: bool = False,
           return_debug_mask: bool = False, *, scale: float | None = None) -> Any:  # fmt: skip
    """Compute what the flash kernel does, for what it takes."""
    if query.dtype not in (torch.float16, torch.bfloat16) or query.shape[-1] % 8 or query.shape[-1] > 256:
        raise RuntimeError(f"flash attention does not take {query.dtype} of size {query.shape[-1]}")
    if query.shape[1] % key.shape[1] or (is_causal and query.shape[2] > key.shape[2]):
        raise RuntimeError("flash attention does not take these heads, or these lengths with a causal mask")
    out, norm = _attended(query, key, value, None, is_causal, scale)
    return out, norm, None, None, query.shape[2], key.shape[2], None, None, None


def _efficient(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor | None, with_norm: bool,
               dropout: float = 0.0, is_causal: bool = False, *, scale: float | None = None) -> Any:  # fmt: skip
    """Compute what the memory-efficient kernel does, for what it takes; its norms are of a multiple of 32 queries."""
    if query.dtype == torch.float64 or query.shape[1] != key.shape[1]:
        raise RuntimeError("efficient attention does not take float64, nor fewer key heads")
    if bias is not None and not (bias.shape == (*query.shape[:3], key.shape[2]) and _is_aligned(bias)):
        raise RuntimeError(f"efficient attention does not take a mask of {bias.shape}, strides {bias.stride()}")
    out, norm = _attended(query, key, value, bias, is_causal, scale)
    rest = -query.shape[2] % 32
    return out, torch.nn.functional.pad(norm, (0, rest), value=torch.inf), None, None


def _is_aligned(bias: torch.Tensor) -> bool:
    strides = zip(bias.stride()[:-1], bias.shape[:-1], strict=True)
    return bias.stride(-1) == 1 and all(stride % 8 == 0 for stride, size in strides if size > 1)


_ATTENTION: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_efficient_attention": _efficient,
}


# -- the cases ---------------------------------------------------------------------------------------------------------


class Rig:
    """A Llama of random weights with grouped heads, on the device, run by our own forward or, if not `is_fused`, by that of transformers.

    No token ends a text of `model`; `</s>` ends one of `ending_model`, which constraints need.
    """

    def __init__(
        self,
        proxy: Proxy,
        layers: int,
        dtype: torch.dtype = torch.bfloat16,
        *,
        is_fused: bool = True,
        is_paged: bool = False,
        paged: bool = False,
    ) -> None:
        import transformers

        from outlines_cont.models.fused import fused_decoder

        config = transformers.LlamaConfig(
            vocab_size=32_000, hidden_size=64, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, max_position_embeddings=8192, eos_token_id=None, bos_token_id=None,
        )  # fmt: skip
        torch.manual_seed(0)
        network: Any = transformers.LlamaForCausalLM(config)
        network = network.to(dtype).eval()
        _write_the_same_at_any_depth(network)
        self._proxy, self._is_fused, self._is_paged, self._paged = proxy, is_fused, is_paged, paged
        self.network = proxy.place(network)
        if is_fused:
            fused_decoder(network)  # which gives the weights other storages
            proxy.place(network)
        self.model = self._stepping(self._opened(byte_tokenizer()))
        self.ending_model = self._stepping(self._opened(byte_tokenizer(eos_token="</s>")))

    def _opened(self, tokenizer: Any) -> Any:
        from outlines_cont import models

        own = {"fused": self._is_fused, "paged": self._paged}
        return models.from_transformers(self.network, tokenizer, prefix_cache_bytes=0, **own)

    def _stepping(self, model: Any) -> Any:
        """Return the model, of which each forward begins a step."""
        assert model.can_branch, model.capabilities
        assert bool(model.capabilities.fused) is self._is_fused, model.capabilities
        if self._is_paged:
            begin_paging(model, self._proxy)
        forward, proxy = model.forward, self._proxy

        def stepping(*args: Any, **kwargs: Any) -> Any:
            proxy.steps.append(Tally())
            proxy.in_forward = True
            try:
                return forward(*args, **kwargs)
            finally:
                proxy.in_forward = False

        model.forward = stepping
        return model

    def texts(self, count: int, length: int, *, shorter: int = 0) -> list[str]:
        """`count` prompts of one token per character, each of `shorter` tokens less than the one before."""
        return [
            "".join(chr(97 + (i * i + row * 7) % 26) for i in range(length - shorter * row)) for row in range(count)
        ]

    def writer(self, **options: Any) -> Any:
        """Free text, continuous."""
        from outlines_cont import continuous, generate

        return continuous(generate.text(self.model, **options))


class Replayed:
    """A step as a CUDA graph: all of its operators are one."""

    def __init__(self, proxy: Proxy, step: Callable[[], torch.Tensor], other: object) -> None:
        self._proxy, self._step = proxy, step

    def replay(self) -> torch.Tensor:
        """Compute the step again."""
        self._proxy.launch("graph")
        with self._proxy.paused():
            return self._step()


def begin_paging(model: Any, proxy: Proxy) -> None:
    """Let the rows of a model have slots of a pool of the device, and its steps be graphs."""
    from outlines_cont.kv.paged.pool import Pool
    from outlines_cont.models.step_graphs import StepGraphs

    model._begin_paging(Pool(*model._fused.kv_layout, num_slots=2**13))
    model._graphs = StepGraphs(model._fused, capture=partial(Replayed, proxy), after=0)


@contextmanager
def paged_kernel(proxy: Proxy) -> Iterator[None]:
    """Let attention over slots be its kernel, and that which sums the splits."""
    from outlines_cont.kv.paged import cache as module

    plain = module.paged_attend

    def attend(query: torch.Tensor, *given: Any, **options: Any) -> torch.Tensor:
        if not proxy.holds(query):
            return plain(query, *given, **options)
        proxy.launch("paged attention")
        proxy.launch("sum of splits")
        with proxy.paused():
            return proxy.place(plain_paged_attend(query, *given, **options))  # type: ignore[no-any-return]

    module.paged_attend = attend
    try:
        yield
    finally:
        module.paged_attend = plain


def _write_the_same_at_any_depth(network: Any) -> None:
    """Let the layers after the first add little, so that models of all depths write the same, by distributions as peaked as real ones."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        network.get_input_embeddings().weight.normal_(std=0.02, generator=generator)
        network.get_output_embeddings().weight.normal_(std=0.8, generator=generator)
        for weight in network.model.layers[0].parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.05, generator=generator)
        for layer in network.model.layers[1:]:
            layer.self_attn.o_proj.weight *= 1e-4
            layer.mlp.down_proj.weight *= 1e-4


_TOKEN_BYTES = 2 * 2 * 16 * 2
"""Bytes of the keys and values of one token in one layer of the models here, in bfloat16."""

Work = Callable[[], Any]


def _text(rig: Rig, rows: int, shorter: int = 0, **options: Any) -> Work:
    write, texts = rig.writer(**options), rig.texts(rows, 32 + shorter * rows, shorter=shorter)
    return lambda: write(texts, max_tokens=8, rng=1)


def _top_p(rig: Rig, rows: int) -> Work:
    from outlines_cont import samplers

    return _text(rig, rows, sampler=samplers.multinomial(top_p=0.9, temperature=0.8))


def _json(rig: Rig, rows: int) -> Work:
    from outlines_cont import continuous, generate

    fields = {name: {"type": "string", "minLength": 3, "maxLength": 6} for name in ("name", "city")}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    write, texts = continuous(generate.json(rig.ending_model, schema)), rig.texts(rows, 32)
    return lambda: write(texts, max_tokens=16)


def _long(rig: Rig, rows: int) -> Work:
    write = rig.writer()
    state = write(*rig.texts(1, 2048), max_tokens=1)
    return lambda: write(state.fork(rows) if rows > 1 else state, max_tokens=8)


def _slices(rig: Rig, rows: int) -> Work:
    from outlines_cont import SequenceState

    write = rig.writer()
    states = write(rig.texts(rows, 160), max_tokens=1)
    cuts = [150 - 7 * row % 112 for row in range(rows)]
    return lambda: write(SequenceState.stack([states[row, :cut] for row, cut in enumerate(cuts)]), max_tokens=1)


@dataclass(frozen=True)
class Case:
    """One case: what is counted are the steps of the work that `prepare` returns, done for the second time if not a call.

    Attributes:
        what: a description, with the place of the number of rows.
        prepare: of a model and a number of rows, returns the work.
        limits: the most of each figure.
        rows: how many there are by default.
        is_call: whether all of the call is one step; else the first two steps and the last are left out.
    """

    what: str
    prepare: Callable[[Rig, int], Work]
    limits: Mapping[str, float]
    rows: int = 16
    is_call: bool = False


_STEP: Mapping[str, float] = {"per_layer": 16, "outside": 24, "syncs": 1, "uploads": 0, "stalls": 1, "plans": 0}
_SHARED: Mapping[str, float] = {**_STEP, "per_layer": 24}
CASES = {
    "text": Case("{} equal rows", _text, _STEP),
    "ragged": Case("{} ragged rows", partial(_text, shorter=1), _STEP),
    "long": Case("{} row on 2,048 tokens", _long, _SHARED, rows=1),
    "json": Case("{} rows of JSON", _json, {**_STEP, "outside": 30}),
    "top_p": Case("{} rows, top-p", _top_p, {**_STEP, "outside": 70}),
    "branches": Case("{} branches on 2,048 tokens", _long, {**_SHARED, "copied": 2.5e6}),
    "slices": Case("next token of {} ragged slices", _slices, {**_STEP, "outside": 60}, is_call=True),
}
FIGURES = ("per_layer", "rest", "outside", "syncs", "uploads", "stalls", "plans", "copied")
_WORST = ("syncs", "uploads", "stalls", "plans", "copied")


@dataclass(frozen=True)
class Measured:
    """The figures of one case, those of `FIGURES`, with what was called and where the host waited."""

    figures: dict[str, float]
    outside_at: dict[int, float]
    names: dict[str, float]
    waits: dict[str, int]


def measure(
    names: Sequence[str], depths: Sequence[int] = (2, 6), *, rows: int | None = None, **options: bool
) -> dict[str, Measured]:
    """Measure cases with models of several depths; `outside` and what follows it is that of the last. `options` are those of `Rig`."""
    found = {depth: _steps(names, depth, rows, **options) for depth in depths}
    return {name: _measured({depth: steps[name] for depth, steps in found.items()}) for name in names}


Counted = tuple[list[Tally], Counter[str]]


@contextmanager
def _real_sizes(depth: int) -> Iterator[None]:
    """Divide memory as for a model of 8 billion parameters and 32 layers, whose tokens take 128 KiB of keys and values."""
    largest = buffer._LARGEST_DEVICE_STACK
    buffer._LARGEST_DEVICE_STACK = largest * _TOKEN_BYTES * depth // 2**17
    try:
        yield
    finally:
        buffer._LARGEST_DEVICE_STACK = largest


def _steps(names: Sequence[str], depth: int, rows: int | None, **options: bool) -> dict[str, Counted]:
    """Return the steps of each case, and where they waited."""
    found: dict[str, Counted] = {}
    with _real_sizes(depth), Proxy() as proxy, paged_kernel(proxy):
        rig = Rig(proxy, depth, **options)
        for name in names:
            work = CASES[name].prepare(rig, rows or CASES[name].rows)
            if not CASES[name].is_call:
                work()
            proxy.restart()
            work()
            steps = [_sum(proxy.steps)] if CASES[name].is_call else proxy.steps[3:-1]
            found[name] = steps, proxy.waits.copy()
    return found


def _measured(found: dict[int, Counted]) -> Measured:
    first, last = min(found), max(found)
    steps, waits = found[last]
    forward = _mean(steps, "forward")
    per_layer = (forward - _mean(found[first][0], "forward")) / max(last - first, 1)
    figures = {"per_layer": per_layer, "rest": forward - last * per_layer, "outside": _mean(steps, "outside")}
    figures |= {key: float(max(getattr(step, key) for step in steps)) for key in _WORST}
    return Measured(
        figures,
        {depth: _mean(counted, "outside") for depth, (counted, _) in found.items()},
        {operator: count / len(steps) for operator, count in _sum(steps).names.most_common()},
        dict(waits.most_common()),
    )


def _sum(steps: Sequence[Tally]) -> Tally:
    total = Tally()
    for step in steps:
        for key, value in vars(step).items():
            setattr(total, key, getattr(total, key) + value)
    return total


def _mean(steps: Sequence[Tally], key: str) -> float:
    return float(sum(getattr(step, key) for step in steps)) / len(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", choices=CASES, action="append", help="one case; all without it")
    parser.add_argument("--depths", type=int, nargs="+", default=[2, 6], help="layers of the models")
    parser.add_argument("--rows", type=int, help="of every case; 1 or 16 without it")
    parser.add_argument("--no-fused", action="store_true", help="let transformers run the layers")
    parser.add_argument("--paged", action="store_true", help="keep keys and values in slots, and run steps as graphs")
    parser.add_argument("--where", action="store_true", help="print the operators of a step, and the lines that waited")
    parser.add_argument("--json", type=Path, help="write all figures to a file")
    options = parser.parse_args()
    how = {"is_fused": not options.no_fused, "is_paged": options.paged}
    found = measure(options.case or list(CASES), options.depths, rows=options.rows, **how)
    what = {name: CASES[name].what.format(options.rows or CASES[name].rows) for name in found}
    print(markdown(("case", *FIGURES), [(what[name], *one.figures.values()) for name, one in found.items()]))
    for name, one in found.items():
        if options.where:
            print(name, json.dumps({"names": one.names, "waits": one.waits, "outside_at": one.outside_at}, indent=1))
    if options.json:
        options.json.write_text(json.dumps({name: asdict(one) for name, one in found.items()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
