"""`infill`: fills a gap between two texts with a text of a language, and `Infilling`, the texts that were found for it.

By the tokens for fill-in-the-middle that a model was trained with (`fim_tokens`), where the prompt has both texts; or by scores: texts are
drawn after the text before the gap, or listed, and each is weighed by how probable it is there with the text behind it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options
from outlines_cont.generation.piece_maker import PieceMaker
from outlines_cont.interfaces import LanguageModel
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.tokens import start_ids

# Of StarCoder, SmolLM and Granite; of Qwen, and of CodeGemma; of SantaCoder; of DeepSeek; of Code Llama.
_NAMES = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)


class FIMTokens(NamedTuple):
    """The ids of the tokens of a model for fill-in-the-middle: they stand before the text before the gap, that behind it, and the gap."""

    prefix: int
    suffix: int
    middle: int


@dataclass(frozen=True, slots=True)
class Infilling:
    """Texts for a gap, the most probable one first.

    Attributes:
        texts: the texts, each once.
        log_probabilities: of each the logarithm of its probability, given that the gap has one of the texts.
        scores: of each the log-probability of itself and of the text behind it after the text before it; of a text that was written by the
            tokens for fill-in-the-middle, that of itself.
        by_fim: whether the model was asked by its tokens for fill-in-the-middle.
    """

    texts: tuple[str, ...]
    log_probabilities: tuple[float, ...]
    scores: tuple[float, ...]
    by_fim: bool

    @property
    def text(self) -> str:
        """The most probable text."""
        return self.texts[0]

    def __str__(self) -> str:
        return self.text


def fim_tokens(model: LanguageModel) -> FIMTokens | None:
    """Return the tokens for fill-in-the-middle of a model; None if its tokenizer has none that is known."""
    ids = {name: token_id for token_id, name in model.tokenizer.special_tokens.items()}
    found = next((names for names in _NAMES if all(name in ids for name in names)), None)
    return None if found is None else FIMTokens(*(ids[name] for name in found))


def infill_by_tokens(
    maker: PieceMaker, tokens: FIMTokens, before: str, after: str, options: Options, rng: Rng
) -> Infilling:
    """Return the texts that a generator writes for the gap, asked by the tokens of its model."""
    encode = maker.model.tokenizer.encode
    prompt = [*start_ids(maker.model), tokens.prefix, *encode(before), tokens.suffix, *encode(after), tokens.middle]
    state = Call(maker, prompt, options, rng=rng).finished_state()
    return _ranked({row.value: row.weight for row in _whole(maker, state, options)}, by_fim=True)


def infill_by_scores(model: Any, texts: Sequence[str], before: str, after: str) -> Infilling:
    """Return some texts, ranked by how probable each is after the text before the gap together with the one behind it."""
    distinct = [*dict.fromkeys(texts)]
    scores = model.score(before, [text + after for text in distinct])
    return _ranked({text: float(one.nansum()) for text, one in zip(distinct, scores, strict=True)}, by_fim=False)


def drawn_texts(maker: PieceMaker, before: str, options: Options, rng: Rng) -> list[str]:
    """Return the texts that a generator draws after a text."""
    state = Call(maker, before, options, rng=rng).finished_state()
    return [row.value for row in _whole(maker, state, options)]


def _whole(maker: PieceMaker, state: SequenceState, options: Options) -> list[StateRow]:
    """Return the rows of a state but those that were cut or have failed; raise the first error if there is no other."""
    rows = [row for group in state.rows for row in group]
    whole = [row for row in rows if row.error is None and maker.is_whole(row)]
    if not whole:
        maker.value_of(state, options.max_tokens)
    return whole


def _ranked(scores: Mapping[str, float], *, by_fim: bool) -> Infilling:
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    logs = [scores[text] for text in ranked]
    total = logs[0] + math.log(math.fsum(math.exp(log - logs[0]) for log in logs))
    return Infilling(tuple(ranked), tuple(log - total for log in logs), tuple(logs), by_fim)
