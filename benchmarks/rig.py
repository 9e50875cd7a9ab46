"""`Rig`: a model of random weights, wrapped and bare, with prompts of any length and a clock."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import Any


def byte_tokenizer(**options: Any) -> Any:
    """A tokenizer of transformers with a token for each byte, after `</s>`."""
    import transformers
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    source = Tokenizer(BPE(vocab={"</s>": 0, **{c: i + 1 for i, c in enumerate(alphabet)}}, merges=[]))
    source.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    source.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=source, **options)


_SHAPES = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "small": {
        "hidden_size": 512,
        "intermediate_size": 1376,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
    },
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
SHAPES = {
    "tiny": "width 64, 2 layers, 4 query and 2 key heads, 32,000 tokens, float32",
    "small": "width 512, 8 layers, 8 query and 2 key heads, 32,000 tokens, float32",
    "8b": "width 4,096, 32 layers, 32 query and 8 key heads, 32,000 tokens, bfloat16: 7 billion parameters",
}
"""The models of random weights, and what a page says of them."""


class Rig:
    """The model and prompts of any length.

    Attributes:
        network: bare.
        model: wrapped; no token ends a text, and nothing is reused from call to call.
        ending_model: wrapped; `</s>` ends a text, which constraints need.
        device: where it runs.
    """

    def __init__(self, device: str, shape: str = "small") -> None:
        import torch
        import transformers

        from outlines_cont import models

        config = transformers.LlamaConfig(
            vocab_size=32_000,
            max_position_embeddings=32_768,
            eos_token_id=None,
            bos_token_id=None,
            **_SHAPES[shape],
        )
        torch.manual_seed(0)
        self.device = device
        with torch.device(device):
            network = transformers.LlamaForCausalLM(config)
        self.network = network.to(torch.bfloat16 if shape == "8b" else torch.float32).eval()
        self.network.generation_config.pad_token_id = 0
        self.model = models.from_transformers(self.network, byte_tokenizer(), prefix_cache_bytes=0)
        self.ending_model = models.from_transformers(
            self.network, byte_tokenizer(eos_token="</s>"), prefix_cache_bytes=0
        )
        assert self.model.can_branch, self.model.capabilities

    def text(self, length: int, seed: int = 0) -> str:
        """A prompt of `length` tokens, one per character."""
        return "".join(chr(97 + (i * i + seed * 7 + i // 5) % 26) for i in range(length))

    def ids(self, text: str) -> Any:
        """(1, T) ids of a text on the device."""
        import torch

        return torch.tensor([self.model.tokenizer.encode(text)], device=self.device)

    def writer(self, **options: Any) -> Any:
        """Free text, continuous."""
        from outlines_cont import continuous, generate

        return continuous(generate.text(self.model, **options))

    def timed(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """Return the seconds that `work` takes, and its result."""
        import torch

        gc.collect()
        start = perf_counter()
        result = work()
        if self.device != "cpu":
            torch.cuda.synchronize()
        return perf_counter() - start, result

    def timed_plain(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """The same without collecting garbage first, for what is called at every step."""
        start = perf_counter()
        result = work()
        return perf_counter() - start, result

    def plain(self, ids: Any, cache: Any, **options: Any) -> Any:
        """Return what transformers itself returns for (R, Q) ids on top of a cache of its own."""
        return self.network(input_ids=ids, use_cache=True, **{self.model.cache_argument: cache}, **options)

    def decode_steps(self, cache: Any, rows: int, steps: int) -> float:
        """Return the seconds of one plain decode step on a cache of transformers, median of `steps`."""
        import torch

        token = torch.full((rows, 1), 7, device=self.device)
        with torch.inference_mode():
            times = [self.timed(lambda: self.plain(token, cache))[0] for _ in range(steps)]
        return statistics.median(times)

    def prefilled(self, text: str, rows: int = 1) -> Any:
        """A `DynamicCache` of a text, repeated."""
        import torch
        from transformers import DynamicCache

        cache = DynamicCache()
        with torch.inference_mode():
            self.plain(self.ids(text), cache, logits_to_keep=1)
        if rows > 1:
            cache.batch_repeat_interleave(rows)
        return cache
