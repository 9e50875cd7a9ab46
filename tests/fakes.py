"""Small things to test with: a tokenizer of bytes and a few longer tokens, random models, and a model that is told what to say."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from outlines_cont import models
from outlines_cont.kv.paged.paging import begin_paging
from outlines_cont.models import HuggingFaceModel
from outlines_cont.models.tokenizer.special_names import SpecialNames
from outlines_cont.models.tokenizer.tokenizer import utf8

BOS, EOS, END_OF_TURN = 0, 1, 2
_WORDS = sorted({"the", "an", "er", "in", "on", "re", "he", "ou", "at", "en", "is", "it", "or", "ti", "as", "te", "et", "ng", "of"})
_WORDS += ["al", "de", "se", "le", "sa", "si", "yes", "no", "true", "false", "red", "green", "blue", "name", "age"]
_MERGED = (
    [word.encode() for word in _WORDS]
    + [b" " + word.encode() for word in _WORDS]
    + [
        b'{"', b'":', b'": ', b'", "', b'"}', b", ", b': "', b"12", b"20", b"00", b"-1", b"  ", b"\n\n", b"ab", b"abc", b"bc",
    ]
    + ["é".encode(), "🙂".encode()[:2], "日".encode()]
)  # fmt: skip


class FakeTokenizer:
    """One token per byte and some longer ones; a text is encoded by the longest token that fits, from left to right.

    Inside a text, letters that go on with a word are spelled by their bytes, as real tokenizers spell them otherwise than a new word.
    """

    def __init__(self, *, bos: bool = True, eos: bool = True, extra: int = 5) -> None:
        special: list[bytes | None] = [None, None, None]
        tokens = special + [bytes([byte]) for byte in range(256)] + list(_MERGED)
        self.token_bytes: tuple[bytes | None, ...] = (*tokens, *[None] * extra)
        self.special_tokens = {BOS: "<s>", EOS: "</s>", END_OF_TURN: "<end>"}
        self.markup_tokens: dict[int, str] = {}
        self.eos_token_id = EOS if eos else None
        self.bos_token_id = BOS if bos else None
        self.fingerprint = hashlib.sha256(repr(self.token_bytes).encode()).hexdigest()
        self._ids = {data: token_id for token_id, data in enumerate(self.token_bytes) if data}
        self._longest = max(map(len, self._ids))

    def __len__(self) -> int:
        return len(self.token_bytes)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        ids = self._spell(utf8(text))
        return [self.bos_token_id, *ids] if add_special_tokens and self.bos_token_id is not None else ids

    def encode_special(self, text: str) -> list[int]:
        return SpecialNames(self.special_tokens).encode(text, self.encode, self.encode_inside)

    def encode_inside(self, text: str, before: Sequence[int] = ()) -> list[int]:
        goes_on = self.text_bytes(before)[-1:].isalpha()
        first = next((at for at, letter in enumerate(text) if not letter.isalpha()), len(text)) if goes_on else 0
        return [self._ids[bytes([byte])] for byte in utf8(text[:first])] + self._spell(utf8(text[first:]))

    def text_bytes(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self.token_bytes[token_id] or b"" for token_id in token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.text_bytes(token_ids).decode("utf-8", errors="replace")

    def _spell(self, data: bytes) -> list[int]:
        ids = []
        while data:
            size = next(n for n in range(min(self._longest, len(data)), 0, -1) if data[:n] in self._ids)
            ids.append(self._ids[data[:size]])
            data = data[size:]
        return ids


VOCAB_SIZE = len(FakeTokenizer())

_SHAPE = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "bos_token_id": BOS, "eos_token_id": EOS,
    "pad_token_id": EOS,
}  # fmt: skip


def _config(family: str) -> Any:
    if family == "llama":
        return transformers.LlamaConfig(**_SHAPE)
    if family == "qwen3":
        return transformers.Qwen3Config(**_SHAPE)
    if family == "mistral":
        return transformers.MistralConfig(**_SHAPE, sliding_window=8)
    if family == "gemma3":
        return transformers.Gemma3TextConfig(**_SHAPE, sliding_window=8, query_pre_attn_scalar=8)
    if family == "gpt2":
        return transformers.GPT2Config(
            vocab_size=VOCAB_SIZE, n_positions=256, n_embd=32, n_layer=2, n_head=4, bos_token_id=BOS, eos_token_id=EOS
        )
    raise KeyError(family)


FAMILIES = ("llama", "gpt2", "qwen3", "mistral", "gemma3")


DEVICE = os.environ.get("TEST_DEVICE", "cpu")
"""Where the models of the tests run: `TEST_DEVICE=cuda pytest` runs them on a GPU."""
PAGED = os.environ.get("TEST_PAGED") == "1"
"""Whether random models keep keys and values in a pool of slots, as on a GPU: `TEST_PAGED=1 pytest`."""


def random_network(family: str, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> PreTrainedModel:
    """A random model whose logits are not flat, always the same for the same arguments."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = transformers.AutoModelForCausalLM.from_config(_config(family), attn_implementation="sdpa")
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.dim() == 2:
                    parameter.mul_(6.0)
    return network.to(DEVICE, dtype).eval()


def recurrent_network() -> PreTrainedModel:
    """A random model whose layers keep a state instead of keys and values."""
    config = transformers.Mamba2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        num_heads=8,
        head_dim=8,
        state_size=8,
        n_groups=2,
        expand=2,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network: PreTrainedModel = transformers.Mamba2ForCausalLM(config).to(DEVICE, torch.float64).eval()
    return network


@cache
def random_model(family: str = "llama", *, dtype: torch.dtype = torch.float64, prefix_cache_bytes: int = 0) -> HuggingFaceModel:
    """The same, wrapped; shared between tests, since a model does not change: what one of them feeds is not reused in another."""
    model = models.from_transformers(random_network(family, dtype=dtype), FakeTokenizer(), prefix_cache_bytes=prefix_cache_bytes)
    if PAGED:
        begin_paging(model, num_slots=16)
    return model


@cache
def tiny() -> HuggingFaceModel:
    """The bundled model, shared between tests, which reads every prompt anew. Like all models of tests it is made when it is first needed:
    all workers import all files."""
    return models.tiny(prefix_cache_bytes=0)


def fresh_model(family: str = "llama") -> HuggingFaceModel:
    """The same, not shared: for tests that count its bytes."""
    return random_model.__wrapped__(family)


Script = Callable[[list[int]], dict[int, float]]


class ScriptedNetwork(transformers.LlamaForCausalLM):
    """A model whose logits follow a script: from the ids of a row so far to the logits of some tokens; others get 0.

    It finds the ids of a row in its cache, where it keeps them as keys.
    """

    script: Script

    def forward(  # type: ignore[override]
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        past_key_values: Any,
        position_ids: torch.Tensor | None = None,
        use_cache: bool = True,
        logits_to_keep: int | torch.Tensor = 0,
        **_: Any,
    ) -> Any:
        keys = input_ids[:, None, :, None].double()
        ids, _values = past_key_values.update(keys, keys, 0)
        columns = ids[:, 0, :, 0].long()
        start = columns.shape[1] - input_ids.shape[1]
        mask = torch.ones_like(columns) if attention_mask is None else attention_mask
        logits = torch.zeros(*input_ids.shape, VOCAB_SIZE)
        for row in range(input_ids.shape[0]):
            for at in range(input_ids.shape[1]):
                seen = mask[row, : start + at + 1].bool()
                ids_so_far = columns[row, : start + at + 1][seen].tolist()
                for token_id, value in (self.script(ids_so_far) if ids_so_far else {}).items():
                    logits[row, at, token_id] = value
        wanted = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return transformers.modeling_outputs.CausalLMOutputWithPast(logits=logits[:, wanted])


def scripted_config(*, eos: bool = True) -> transformers.LlamaConfig:
    """What a `ScriptedNetwork` is made of."""
    return transformers.LlamaConfig(**{**_SHAPE, "eos_token_id": EOS if eos else None, "num_hidden_layers": 1})


def scripted_model(script: Script, *, eos: bool = True) -> HuggingFaceModel:
    """A model that says what `script` says."""
    network = ScriptedNetwork(scripted_config(eos=eos))
    network.script = lambda ids: {ids[-1]: 1.0}  # the model is tried when it is made, and a script may refer to it
    model = models.from_transformers(network, FakeTokenizer(eos=eos))
    network.script = script
    return model


def saying(text: str, logit: float = 20.0) -> Script:
    """A script that writes `text` byte by byte after whatever prompt it is given, then ends; prompts end with `>`."""
    tokenizer = FakeTokenizer()

    def script(ids: list[int]) -> dict[int, float]:
        written = tokenizer.text_bytes(ids)
        done = written[written.rindex(b">") + 1 :] if b">" in written else b""
        rest = text.encode()[len(done) :]
        token_id = tokenizer._ids[rest[:1]] if rest else EOS
        return {token_id: logit}

    return script


@contextmanager
def failing(model: HuggingFaceModel, at: int) -> Iterator[None]:
    """Let one forward of a model fail, by its number; those that find out what it can do are not counted."""
    _ = model.capabilities
    forward, count = model.forward, itertools.count()

    def fails_once(*arguments: Any) -> torch.Tensor:
        if next(count) == at:
            raise RuntimeError("out of memory, say")
        return forward(*arguments)

    model.forward = fails_once  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.forward
