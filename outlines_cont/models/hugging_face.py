"""`HuggingFaceModel`: a causal language model of transformers with the interface of the engine (`LanguageModel`); `transformers` loads one
by hub id or path, `tiny` the small one that is bundled, `from_transformers` wraps a loaded one. What its KV cache supports is probed when
first needed; encoder-decoders, and recurrent models whose cache is not exact, are refused. A loaded model is pickled as the call that
opened it, a wrapped one cannot be pickled. The prefix cache has a sixteenth of the device's memory by default, at most 4 GiB.

The layers of known families run by our own forward over the same weights (`models.fused`) where it has the logits of that of transformers,
and as long as nothing is registered or replaced in the network.

Only the files of the given id are fetched, by transformers, and no code of a repository is run unless the caller passes
`trust_remote_code=True`. Weights and tokenizer of the caller are never changed, but weights may be moved in memory, beside each
other; the model is put in evaluation mode, and its attention function is replaced during forwards over shared prefixes.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from outlines_cont.checks import check, checked_bool, is_int, is_number, knows_its_options
from outlines_cont.device import upload
from outlines_cont.engine.prefill import EngineModel
from outlines_cont.errors import ImageLost, NotPicklable, OptionError, UnsupportedModel
from outlines_cont.interfaces import Tokenizer as TokenizerProtocol
from outlines_cont.kv.attention import causal_mask, prefix_attention_of
from outlines_cont.kv.batch import Fed
from outlines_cont.kv.growing import GrowingCache
from outlines_cont.kv.paged.attention import has_kernel
from outlines_cont.kv.paged.paging import Paging
from outlines_cont.kv.paged.pool import Pool
from outlines_cont.kv.pixel_store import Pixels, PixelStore, ReadImage
from outlines_cont.kv.prefix_cache import PrefixCache
from outlines_cont.kv.row import RowKV
from outlines_cont.kv.store import KVStore
from outlines_cont.models.capability import (
    NO_IMAGES,
    NOT_IN_PLACE,
    Capabilities,
    Finding,
    check_causal,
    check_recurrent,
    compare,
    exactness,
    half_precision,
    is_invariant,
    is_recurrent,
    probe,
)
from outlines_cont.models.collector import freeze_modules
from outlines_cont.models.decoder_family import NotFused
from outlines_cont.models.fused import FusedDecoder, fused_decoder
from outlines_cont.models.image_probe import ImageFeeder, probe_images
from outlines_cont.models.image_reader import ImageReader, takes_images
from outlines_cont.models.invariant import invariant_decoder
from outlines_cont.models.joined import evaluating, forward_mark
from outlines_cont.models.loading import (
    Opening,
    load,
    load_bundled,
    next_number,
    open_bundled_processor,
    open_processor,
    reopened,
)
from outlines_cont.models.step_graphs import StepGraphs
from outlines_cont.models.text_tower import modules_around, text_tower, unwrapped
from outlines_cont.models.tokenizer.tokenizer import Tokenizer
from outlines_cont.models.versions import cache_argument, complete_outputs
from outlines_cont.waiting import spin_watch

_CAPABILITIES: dict[tuple[Any, ...], Capabilities] = {}
_CAUSAL: set[tuple[type, str]] = set()
"""The classes and configs of the networks that are known to be causal."""
_INVARIANT: dict[tuple[Any, ...], bool] = {}
"""Whether the deterministic forward of a class and a config is so, by float type and number of threads."""
# How many values of each weight are in the fingerprint of a model.
_FINGERPRINT_VALUES = 64
_PIXEL_BYTES = 2**30
_no_context = nullcontext()
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# The memory that is assumed where the system does not report it.
_UNKNOWN_MEMORY = 8 * 2**30


class HuggingFaceModel(EngineModel):
    """A causal language model with its tokenizer, ready for the generators. Make one with `models.transformers`.

    Attributes:
        hugging_face: the `transformers` model, in evaluation mode.
        tokenizer: the tokenizer, exact in bytes.
        vocab_size: V, the width of the logits.
        context_length: the largest number of tokens of a sequence, None if the config sets none.
        eos_token_ids: every id that ends a text: those of the generation config and the tokenizer's.
        cache_argument: the name by which the network takes and returns a KV cache: `"past_key_values"` or, since transformers 5.24,
            `"cache"`.
        opening: the call that opened it, by which it is pickled; None for one that was wrapped.
        prefix_cache: keys and values of recent prompts and texts; see `PrefixCache`.
        deterministic: whether the logits after a text depend on it alone; see `models.from_transformers`.
        pixels: what the network takes of the images of states, to see them again; `pixels.max_bytes` bounds it, 1 GiB by default.
    """

    has_kv = True

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Any,
        *,
        kv_budget_bytes: int | None = None,
        prefix_cache_bytes: int | None = None,
        fused: bool = True,
        deterministic: bool = False,
        paged: bool = False,
        open_processor: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__()
        self.is_recurrent = is_recurrent(model)
        self.hugging_face = model
        self.deterministic = deterministic
        self._is_paged = paged
        make = invariant_decoder if deterministic else fused_decoder
        # Kept, as the decoder that is made of it does not keep it alive.
        self._text_tower = text_tower(model)
        self._fused, self._why_not_fused = (
            _made(make, self._text_tower, modules_around(self._text_tower, model))
            if fused
            else (None, "turned off: `fused=False`")
        )
        self.vocab_size = _vocab_size(model)
        self.tokenizer: TokenizerProtocol = (
            tokenizer if hasattr(tokenizer, "token_bytes") else Tokenizer(tokenizer, vocab_size=self.vocab_size)
        )
        config: Any = model.config.get_text_config(decoder=True)
        self.context_length: int | None = getattr(config, "max_position_embeddings", None)
        self.eos_token_ids = _eos_token_ids(model, self.tokenizer)
        self.opening: Opening | None = None
        self._found: dict[tuple[Any, ...], Capabilities] = {}
        self._graphs: StepGraphs | None = None
        self._number = next_number()
        self.kv_store = KVStore(kv_budget_bytes)
        size = default_prefix_cache_bytes(model.device) if prefix_cache_bytes is None else prefix_cache_bytes
        self._prefix_cache = PrefixCache(self.kv_store, size, lambda: forward_mark(model))
        self.pixels = PixelStore(_PIXEL_BYTES)
        self._open_processor = open_processor
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        self.cache_argument = cache_argument(model)
        complete_outputs(model)
        if self.is_recurrent:
            check_recurrent(model, self)
        elif (known := (type(model), self._config_text)) not in _CAUSAL:
            check_causal(model, self, self._plain_forward)
            _CAUSAL.add(known)
        if deterministic:
            self._check_deterministic()

    @property
    def prefix_cache(self) -> PrefixCache:
        """Keys and values of recent prompts and texts; `prefix_cache.max_bytes = 0` turns their reuse off."""
        return self._prefix_cache

    @prefix_cache.setter
    def prefix_cache(self, value: object) -> None:
        raise OptionError(
            f"expected that the prefix cache of a model stays the same, got {value!r} in its place. To turn it off open the model with "
            "`prefix_cache_bytes=0`, or write `model.prefix_cache.max_bytes = 0`; to empty it call `model.prefix_cache.clear()`.",
            "prefix_cache",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the call that opened the model, no weights. A process that has it open uses that one, others open it once.

        Raises `NotPicklable` if the model was wrapped, so that its source is unknown.
        """
        if self.opening is None:
            raise NotPicklable(
                f"expected a model that another process can open, got {self!r}, which was wrapped with "
                "`models.from_transformers`. Save it with `save_pretrained` and open it with `models.transformers(path)`, or "
                "open it in each process by itself; states go there as files: `state.save(file)`, "
                "`SequenceState.load(file, model)`."
            )
        return reopened, (self.opening, self.fingerprint)

    @property
    def device(self) -> torch.device:
        """The device of the first weight, to which the input ids are sent."""
        parameters, name = self._first_weight
        weight: torch.Tensor = parameters[name]
        return weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The float type of the weights."""
        return self.hugging_face.dtype

    @property
    def can_stack(self) -> bool:
        """Whether rows of different lengths may run in one batch; the first read runs a short probe."""
        return bool(self._probed(self._fused_now()).stack)

    @property
    def can_skip(self) -> bool:
        """Whether masked columns inside a row are harmless; the first read runs a short probe."""
        return bool(self._probed(self._fused_now()).skip)

    @cached_property
    def _first_weight(self) -> tuple[dict[str, Any], str]:
        """The parameters of the module that has the first weight, and its name; cached, as the search takes as long as a small layer."""
        path, _ = next(self.hugging_face.named_parameters())
        owner, _, name = path.rpartition(".")
        return self.hugging_face.get_submodule(owner)._parameters, name

    @cached_property
    def fingerprint(self) -> str:
        """A SHA-256 of the config, and of name, shape, type and some values of every weight. Cost: milliseconds."""
        digest = hashlib.sha256(self._config_text.encode())
        for name, weight in self.hugging_face.state_dict().items():
            flat = weight.detach().flatten()
            some = flat[:: max(len(flat) // _FINGERPRINT_VALUES, 1)].double().cpu().numpy()
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype} ".encode() + some.tobytes())
        return digest.hexdigest()

    @property
    def can_branch(self) -> bool:
        """Whether rows may attend to a shared prefix in place, without copying it; the first read runs a short probe."""
        return not self.deterministic and bool(self._probed(self._fused_now()).branch)

    @property
    def can_reuse(self) -> bool:
        """Whether rows may begin with keys and values that other rows have fed; the first read runs a short probe."""
        return bool(self._probed(self._fused_now()).reuse)

    @property
    def capabilities(self) -> Capabilities:
        """The operations that the model's KV cache supports; `print` it. A short probe runs once per class, config and float type."""
        fused = self._fused_now()
        exact = exactness(self.dtype, self.deterministic)
        half = half_precision() if self.device.type == "cpu" else None
        found = replace(self._probed(fused), fused=fused, exact=exact, images=self._images, half=half)
        return replace(found, branch=NOT_IN_PLACE) if self.deterministic else found

    def _probed(self, fused: Finding) -> Capabilities:
        """Return what a probe of the forward that runs now has found. Cost: 2 us after the first probe; steps of the engine read it."""
        parameters, name = self._first_weight
        weight: torch.Tensor = parameters[name]
        key = bool(fused), weight.dtype, weight.device.type, self.deterministic
        found = self._found.get(key)
        if found is None:
            attention = self.hugging_face.config._attn_implementation
            shared = type(self.hugging_face), self._config_text, attention, *key
            found = _CAPABILITIES.get(shared) or probe(self.hugging_face, self, fused)
            self._found[key] = _CAPABILITIES[shared] = found
        return found

    @cached_property
    def _verified(self) -> Finding:
        """Whether our own forward has the logits of that of transformers; measured when it is first needed."""
        assert self._fused is not None
        config = self.hugging_face.config.get_text_config(decoder=True)
        forwards = self._fused_forward, self._plain_forward
        found = compare(config, self, *forwards, can_branch=not self.deterministic)
        if found and self._is_paged and self.device.type == "cuda" and not takes_images(self.hugging_face):
            num_layers, like = self._fused.kv_layout
            if has_kernel(like.dtype, like.shape[2]):
                pool = Pool(num_layers, like, budget_bytes=self.kv_store.budget_bytes)
                if compare(config, self, *forwards, pool=pool):
                    self._begin_paging(pool)
        return found

    def _begin_paging(self, pool: Pool) -> None:
        """Keep keys and values in slots of a pool from now on, and run steps as graphs."""
        assert self._fused is not None
        self.kv_store.paging = Paging(pool, self.kv_store)
        self._graphs = StepGraphs(self._fused)

    def _fused_now(self) -> Finding:
        """Whether a forward now is our own, and why."""
        change = None if self._fused is None else self._fused.change()
        if self._fused is None or change is not None:
            return Finding(False, change or self._why_not_fused)
        return self._verified

    def _check_deterministic(self) -> None:
        """Raise `UnsupportedModel` unless our own forward runs now, and depends on nothing but the text."""
        found = self._fused_now()
        if found and self._is_invariant:
            return
        why = (
            found.why
            if not found
            else "measured: rows of its products differ with their place, in the libraries of this machine"
        )
        raise UnsupportedModel(
            f"expected a model with a deterministic forward, got {self!r} ({why}). Open it without `deterministic=True`; in float32 texts "
            "differ with the batch only where two tokens are equally probable up to 1e-6."
        ) from found.cause

    @cached_property
    def _is_invariant(self) -> bool:
        key = type(self.hugging_face), self._config_text, self.dtype, torch.get_num_threads()
        if key not in _INVARIANT:
            _INVARIANT[key] = is_invariant(self.hugging_face.config, self, self._fused_forward)
        return _INVARIANT[key]

    @cached_property
    def _reader(self) -> ImageReader | None:
        """What makes images ready for the network; None where it takes none, or there is no processor."""
        if self._open_processor is None or not takes_images(self.hugging_face):
            return None
        return ImageReader(self.hugging_face, self.tokenizer, self._open_processor, self.pixels)

    @cached_property
    def _images(self) -> Finding:
        """Whether the network is exact behind an image; measured when it is first needed."""
        if not takes_images(self.hugging_face):
            return NO_IMAGES
        if self._reader is None:
            advice = "pass its processor: `models.from_transformers(model, processor)`"
            return Finding(False, f"opened with a tokenizer alone; {advice}")
        with self.kv_store.lock, evaluating(self.hugging_face):
            return probe_images(self.hugging_face, self, self._reader, self._image_forward)

    @property
    def image_placeholder(self) -> str:
        """What a chat template, and the processor, writes in the place of an image. Raises `UnsupportedModel` where there are none."""
        return self._sighted.placeholder

    @property
    def _sighted(self) -> ImageReader:
        """The reader of a model that is exact behind an image."""
        found = self._images
        if not found or self._reader is None:
            raise UnsupportedModel(f"expected a model that takes images, got {self!r}: {found.why}.") from found.cause
        return self._reader

    def read_image(self, image: Any) -> ReadImage:
        """Return an image as the network takes it; see `models.image_file.open_image` for what is an image.

        Raises:
            UnsupportedModel: the network takes no images, or is not exact behind them.
            ImageError: the image cannot be read.
        """
        return self._sighted.read(image)

    def pixels_of(self, token_ids: Sequence[int], inputs: Mapping[str, torch.Tensor]) -> ReadImage:
        """Return the same for the tensors of an image that were saved."""
        return self._sighted.of_tensors(token_ids, inputs)

    def feed_image(
        self, share: RowKV | None, token_ids: Sequence[int], pixels: Pixels, offset: int, wanted: Sequence[int]
    ) -> tuple[RowKV | None, Fed]:
        """Feed an image on top of the keys and values of a row; see `LanguageModel.feed_image`."""
        inputs = self.pixels.use(pixels)
        if inputs is None or self._reader is None:
            raise ImageLost("expected an image whose pixels are kept, but they were dropped. See it anew: `model.see`.")
        feeder = ImageFeeder(self, self._reader, self._image_forward, (token_ids, inputs))
        return feeder.feed(share, offset, wanted)

    def _image_forward(self, *args: Any) -> torch.Tensor:
        with _no_context if torch.is_inference_mode_enabled() else torch.inference_mode():
            logits = self._plain_forward(*args)
        return logits if logits.dtype == torch.float64 else logits.float()

    def new_cache(self) -> DynamicCache:
        """Return an empty cache of one row, with the layers that the config names."""
        return DynamicCache(config=self.hugging_face.config)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        cache: DynamicCache,
        columns: Sequence[int],
    ) -> torch.Tensor:
        """Feed ids on top of `cache` and return (R, len(columns), V) logits. See `LanguageModel.forward`."""
        if self.deterministic and isinstance(cache, GrowingCache):
            self._check_deterministic()  # weights or modules may have changed since
        if isinstance(cache, GrowingCache) and self._is_watched_late:
            run = self._launched
        else:
            is_fused = isinstance(cache, GrowingCache) and bool(self._fused_now())
            run = self._fused_forward if is_fused else self._plain_forward
        is_watched = spin_watch.is_on and torch.get_num_threads() > 1 and self.device.type == "cpu"
        with _no_context if torch.is_inference_mode_enabled() else torch.inference_mode():
            with spin_watch.timed() if is_watched else _no_context:
                logits = run(input_ids, attention_mask, position_ids, cache, columns)
            return logits if logits.dtype == torch.float64 else logits.float()

    @property
    def _is_watched_late(self) -> bool:
        """Whether our own forward is launched before it is known if it still may run: its device computes while the host finds out."""
        known: Finding | None = self.__dict__.get("_verified")
        return self.device.type == "cuda" and known is not None and bool(known)

    def _launched(
        self, input_ids: Any, attention_mask: Any, position_ids: Any, cache: Any, columns: Sequence[int]
    ) -> torch.Tensor:
        """Launch our own forward; if the network has changed since the last one, that of transformers writes the same columns again."""
        assert self._fused is not None
        given = input_ids, attention_mask, position_ids, cache, columns
        logits: torch.Tensor | None = None
        try:
            logits = self._fused_forward(*given)
        except RuntimeError:  # of weights that are on another device now, for example
            if self._fused.change() is None:
                raise
        if logits is not None and self._fused.change() is None:
            return logits
        cache.tails.were_read()  # ends our forward
        return self._plain_forward(*given)

    def _fused_forward(
        self, input_ids: Any, attention_mask: Any, position_ids: Any, cache: Any, columns: Sequence[int]
    ) -> torch.Tensor:
        assert self._fused is not None
        run = self._fused if self._graphs is None else self._graphs
        with self._in_own_type(input_ids.device.type):
            return run(input_ids, attention_mask, position_ids, cache.tails, columns)

    def _plain_forward(
        self,
        input_ids: Any,
        attention_mask: Any,
        position_ids: Any,
        cache: Any,
        columns: Sequence[int],
        image: Mapping[str, Any] | None = None,
    ) -> torch.Tensor:
        options: dict[str, Any] = {self.cache_argument: cache}
        options |= {"position_ids": position_ids} if "position_ids" in self._takes else {}
        options |= image or {}
        if "attention_mask" in self._takes:
            is_paged = isinstance(cache, GrowingCache) and cache.tails.is_paged
            options["attention_mask"] = cache.tails.mask() if is_paged else attention_mask
        last = len(columns) == 1 and columns[0] == input_ids.shape[1] - 1
        if "logits_to_keep" in self._takes:
            options["logits_to_keep"] = 1 if last else upload(np.array(columns), input_ids.device)
        is_ours = isinstance(cache, GrowingCache) and cache.tails.is_ours
        if is_ours and attention_mask is None and (width := input_ids.shape[1]) > 1 and cache.tails.num_columns:
            mask = causal_mask(width, cache.tails.length + width, self.dtype, input_ids.device)
            options |= {"attention_mask": mask} if "attention_mask" in self._takes else {}
        with (
            evaluating(self.hugging_face),
            prefix_attention_of(self.hugging_face.config) if is_ours else _no_context,
            self._in_own_type(input_ids.device.type),
        ):
            logits: torch.Tensor = self.hugging_face(input_ids=input_ids, use_cache=True, **options).logits
        return logits if "logits_to_keep" in self._takes else logits[:, list(columns)]

    def _in_own_type(self, kind: str) -> AbstractContextManager[object]:
        """Return a context without autocast on a kind of device: keys and values of several float types would not fit together."""
        if not torch.is_autocast_enabled(kind):
            return _no_context
        warnings.warn(
            f"`torch.autocast` is left out: {self!r} runs in the float type of its weights, as its keys and values are kept. "
            "Open it in another one: `dtype='bfloat16'`.",
            stacklevel=2,
        )
        return torch.autocast(kind, enabled=False)

    @property
    def _config_text(self) -> str:
        config = self.hugging_face.config.to_dict()
        volatile = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")
        return json.dumps({k: v for k, v in config.items() if k not in volatile}, sort_keys=True, default=str)

    def __repr__(self) -> str:
        kind = type(self.hugging_face).__name__
        source = "" if self.opening is None else self.opening.options.get("id_or_path", "")
        name = f"{source!r}, {kind}" if source else kind
        return f"<{type(self).__name__} {name}, {self.vocab_size} tokens, {self.dtype}, {self.device}{self._number}>"


def transformers(
    id_or_path: str | PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    kv_budget_bytes: int | None = None,
    prefix_cache_bytes: int | None = None,
    fused: bool = True,
    deterministic: bool = False,
    paged: bool = False,
    freeze: bool = True,
    **kwargs: Any,
) -> HuggingFaceModel:
    """Load a model and its tokenizer by hub id or path.

    Args:
        id_or_path: what `AutoModelForCausalLM.from_pretrained` takes. A hub id downloads that repository's files.
        device: where to put the weights, such as `"cuda"`; None leaves it to transformers (the CPU, or `device_map`).
        dtype: the float type of the weights, such as `"bfloat16"`; None takes that of the checkpoint. `"auto"` on a CPU is bfloat16 if the
            processor multiplies it by instructions of its own, else float32, and elsewhere that of the checkpoint.
        kv_budget_bytes: see `from_transformers`.
        prefix_cache_bytes: see `from_transformers`.
        fused: see `from_transformers`.
        deterministic: see `from_transformers`.
        paged: see `from_transformers`.
        freeze: whether Python's collector of reference cycles leaves out from then on what exists before the first model of the process is
            opened (`gc.freeze`), the modules of torch above all; a full collection takes 250 ms with them. False leaves it alone.
        **kwargs: options of `AutoModelForCausalLM.from_pretrained`, and attributes of the config; `revision`, `token`, `cache_dir`,
            `local_files_only`, `subfolder` and `trust_remote_code` are given to the tokenizer, too. `trust_remote_code` is False
            if it is not given: a model that has code of its own is then refused, and nothing is asked.

    The model is pickled as these arguments but for `token`: another process opens it again, with its own login.

    Raises:
        OptionError: `id_or_path` is neither an id nor the folder of a model, the device does not exist, `dtype` is no float type, or
            another argument is none that `from_transformers` takes.
        UnknownOption: an option is unknown; the message suggests the closest known one.
        ModelNotFound: it is not a folder, and neither the cache nor the hub has a model with that id, or the hub cannot be reached.
        OSError: a folder cannot be read.
        ValueError: the model has code of its own, and `trust_remote_code=True` is not given.
        MissingTokenizer: there is a model but no tokenizer that can be read.
        UnsupportedModel: the model is no decoder, has no cache, or is recurrent in a way that its cache cannot carry exactly.
    """
    freeze_modules(checked_bool(freeze, "freeze"))
    own: dict[str, Any] = {
        "kv_budget_bytes": kv_budget_bytes,
        "prefix_cache_bytes": prefix_cache_bytes,
        "fused": fused,
        "deterministic": deterministic,
        "paged": paged,
    }
    _check_own(**own)
    model, tokenizer = load(id_or_path, device, dtype, kwargs)
    opener = partial(open_processor, id_or_path, kwargs)
    wrapped = _wrapped(model, tokenizer, opener, **own)
    # Another process may have another working directory.
    source = str(Path(id_or_path).resolve()) if Path(id_or_path).is_dir() else str(id_or_path)
    options = {"id_or_path": source, "device": device, "dtype": dtype, **own, "freeze": freeze, **kwargs}
    wrapped.opening = Opening.of(wrapped, transformers, {k: v for k, v in options.items() if k != "token"})
    return wrapped


@knows_its_options()
def tiny(
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = torch.float32,
    kv_budget_bytes: int | None = None,
    prefix_cache_bytes: int | None = None,
    fused: bool = True,
    deterministic: bool = False,
    paged: bool = False,
    freeze: bool = True,
) -> HuggingFaceModel:
    """Load the bundled model from the package; nothing is downloaded. It is trained to read short messages and write JSON records.

    It is weak at anything else. `python -m scripts.real_model FOLDER` makes a small chat model, for `transformers(FOLDER)`.

    Args:
        device: where to put the weights; None is the CPU.
        dtype: the float type of the weights.
        kv_budget_bytes: see `models.from_transformers`.
        prefix_cache_bytes: see `models.from_transformers`.
        fused: see `models.from_transformers`.
        deterministic: see `models.from_transformers`.
        paged: see `models.from_transformers`.
        freeze: see `models.transformers`.

    Raises:
        OptionError: there is no such device, `dtype` is no float type, or another argument is not a number of bytes.
    """
    own: dict[str, Any] = {
        "kv_budget_bytes": kv_budget_bytes,
        "prefix_cache_bytes": prefix_cache_bytes,
        "fused": fused,
        "deterministic": deterministic,
        "paged": paged,
    }
    return _bundled(tiny, device, dtype, freeze, own)


@knows_its_options()
def tiny_vision(
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype = torch.float32,
    kv_budget_bytes: int | None = None,
    prefix_cache_bytes: int | None = None,
    fused: bool = True,
    deterministic: bool = False,
    paged: bool = False,
    freeze: bool = True,
) -> HuggingFaceModel:
    """Load the bundled vision model from the package; nothing is downloaded. It is trained to read small pictures of receipts.

    It reads receipts as `outlines-cont demo --images` draws them, in printed fonts, and nothing else: no photographs, no handwriting.
    How well is in its `MODEL_CARD.md`. Its images need pillow: `pip install 'outlines-cont[images]'`.

    Args:
        device: where to put the weights; None is the CPU.
        dtype: the float type of the weights, which are stored in float16.
        kv_budget_bytes: see `models.from_transformers`.
        prefix_cache_bytes: see `models.from_transformers`.
        fused: see `models.from_transformers`.
        deterministic: see `models.from_transformers`.
        paged: see `models.from_transformers`.
        freeze: see `models.transformers`.

    Raises:
        OptionError: there is no such device, `dtype` is no float type, or another argument is not a number of bytes.
    """
    own: dict[str, Any] = {
        "kv_budget_bytes": kv_budget_bytes,
        "prefix_cache_bytes": prefix_cache_bytes,
        "fused": fused,
        "deterministic": deterministic,
        "paged": paged,
    }
    return _bundled(tiny_vision, device, dtype, freeze, own)


def _bundled(
    function: Callable[..., HuggingFaceModel], device: Any, dtype: Any, freeze: bool, own: dict[str, Any]
) -> HuggingFaceModel:
    """Return the bundled model of a public function, whose folder has its name; `own` are options of `from_transformers`."""
    freeze_modules(checked_bool(freeze, "freeze"))
    _check_own(**own)
    name = function.__name__
    model, tokenizer = load_bundled(name, device, dtype)
    opener = partial(open_bundled_processor, name) if takes_images(model) else None
    wrapped = _wrapped(model, tokenizer, opener, **own)
    wrapped.opening = Opening.of(wrapped, function, {"device": device, "dtype": dtype, **own, "freeze": freeze})
    return wrapped


@knows_its_options()
def from_transformers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | ProcessorMixin | TokenizerProtocol,
    *,
    kv_budget_bytes: int | None = None,
    prefix_cache_bytes: int | None = None,
    fused: bool = True,
    deterministic: bool = False,
    paged: bool = False,
) -> HuggingFaceModel:
    """Wrap a model and a tokenizer that are loaded already. Neither is changed, but the model is put in evaluation mode.

    Args:
        model: a causal language model.
        tokenizer: the one that belongs to it; for prompts with images the processor, which has a tokenizer.
        kv_budget_bytes: the most bytes that the keys and values of all states may take together, None for no limit. Those
            used least recently are dropped, and computed again when their state is continued. `KVBudgetError` is raised if
            the rows of one call alone need more.
        prefix_cache_bytes: the most bytes that keys and values of earlier prompts and texts may take, for prompts that begin like
            them; 0 turns their reuse off. None for a sixteenth of the memory, and no more than 4 GiB.
        fused: False lets transformers run the layers, as it does in families that our own forward does not know;
            `print(model.capabilities)` says which one runs, and why.
        deterministic: whether the logits after a text depend on that text alone, bit by bit, whatever else runs, and however the text was
            cut, cached or drafted: then equal calls write equal texts in half precision, too, with the same number of threads. On a CPU,
            in families of our own forward. A step costs as much as one of 32 tokens, and rows copy the prefixes that they share.
        paged: whether keys and values are in slots of one pool, which rows share token by token, and steps are CUDA graphs, if that
            gives the logits of transformers: on CUDA with Triton, in families of our own forward. Elsewhere nothing changes. It has not
            run on a GPU yet.

    Raises:
        OptionError: one of the budgets is not a number of bytes, or `fused`, `deterministic` or `paged` is not a bool, or they contradict.
        UnsupportedModel: `deterministic` was given, and our own forward does not run the model, or this machine's libraries are not
            so; the model is no decoder, has no cache, or is recurrent in a way that its cache cannot carry exactly.
    """
    model = unwrapped(model)
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"expected a transformers model as `model`, got {type(model).__name__}. "
            "To load one by its id or path use `models.transformers(...)`."
        )
    if not hasattr(model, "generation_config") and model.get_output_embeddings() is None:  # type: ignore[no-untyped-call]
        raise UnsupportedModel(
            f"expected a causal language model, such as one of `AutoModelForCausalLM`, got {type(model).__name__}, which has no layer that "
            "scores the next token: it is a part of one, or made for another task."
        )
    own: dict[str, Any] = {
        "kv_budget_bytes": kv_budget_bytes,
        "prefix_cache_bytes": prefix_cache_bytes,
        "fused": fused,
        "deterministic": deterministic,
        "paged": paged,
    }
    _check_own(**own)
    opener = None
    if hasattr(tokenizer, "image_processor") and hasattr(tokenizer, "tokenizer"):
        processor, tokenizer = tokenizer, tokenizer.tokenizer
        opener = partial(_itself, processor)
    return _wrapped(model, tokenizer, opener, **own)


def _check_own(
    *, kv_budget_bytes: object, prefix_cache_bytes: object, fused: object, deterministic: object, paged: object
) -> None:
    """Raise `OptionError` for values that `from_transformers` does not take."""
    holds = kv_budget_bytes is None or (is_number(kv_budget_bytes) and kv_budget_bytes > 0)
    check("kv_budget_bytes", kv_budget_bytes, holds, "a number of bytes")
    if prefix_cache_bytes is not None and not is_int(prefix_cache_bytes, 0):
        raise OptionError(
            f"expected a number of bytes, 0 or more, as `prefix_cache_bytes`, got {prefix_cache_bytes!r}. "
            "0 turns the reuse of prefixes off.",
            "prefix_cache_bytes",
        )
    checked_bool(fused, "fused")
    checked_bool(paged, "paged")
    if checked_bool(deterministic, "deterministic") and not fused:
        raise OptionError(
            "expected `deterministic` without `fused=False`: the forward of transformers depends on the batch. Leave one of them out.",
            "deterministic",
        )


def _wrapped(model: Any, tokenizer: Any, opener: Callable[[], Any] | None, **own: Any) -> HuggingFaceModel:
    """Return a model of options that were checked; `opener` returns its processor."""
    model.train(False)
    return HuggingFaceModel(model, tokenizer, open_processor=opener, **own)


def _itself(value: Any) -> Any:
    return value


def _made(
    make: Callable[[Any, Sequence[torch.nn.Module]], FusedDecoder], tower: Any, around: Sequence[torch.nn.Module]
) -> tuple[FusedDecoder | None, str]:
    """Return our own forward of a network of texts, and of what is around it; None and the reason if there is none."""
    try:
        return make(tower, around), ""
    except NotFused as reason:
        return None, str(reason)


def _vocab_size(model: PreTrainedModel) -> int:
    """Return the width of the logits: the output layer's, which may be padded beyond the tokenizer."""
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    weight = getattr(head, "weight", None)
    if isinstance(weight, torch.Tensor):
        return int(weight.shape[0])
    width = getattr(head, "out_features", None)  # of a layer that is quantised, whose weight is a method
    return int(model.config.get_text_config(decoder=True).vocab_size if width is None else width)


def _eos_token_ids(model: PreTrainedModel, tokenizer: TokenizerProtocol) -> frozenset[int]:
    settings: Any = getattr(model, "generation_config", None) or model.config
    sources = [getattr(settings, "eos_token_id", None), tokenizer.eos_token_id]
    return frozenset(i for source in sources for i in ([source] if isinstance(source, int) else source or ()))


def default_prefix_cache_bytes(device: torch.device) -> int:
    """Return a sixteenth of the memory, at most 4 GiB: of 32 GB, 16,000 tokens of an 8B model with grouped keys (128 KiB a token)."""
    return min(_memory_bytes(device) // 16, 4 * 2**30)


def _memory_bytes(device: torch.device) -> int:
    """Return the bytes of memory of a device; for the CPU the limit of the container, if there is one."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    except (AttributeError, ValueError, OSError):  # not on every system
        found = [_UNKNOWN_MEMORY]
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # there is no such file, or its content is "max"
            found.append(int(Path(path).read_text()))
    return min(found)
