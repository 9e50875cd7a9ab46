"""The plain form of what the engine does: one row, no cache, no batch, no forced text, masks by trying every token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import torch
from transformers import PreTrainedModel

from outlines_cont.models import HuggingFaceModel
from outlines_cont.state.row import StateRow

Extends = Callable[[bytes], bool]
Logs = Callable[[tuple[int, ...]], torch.Tensor]
"""From ids to the (V,) log-probabilities after them."""


def plain_logs(model: HuggingFaceModel) -> Logs:
    """The log-probabilities after ids, by a forward over all of them."""

    @cache
    def logs(token_ids: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            ids = torch.tensor([token_ids], device=model.device)
            return model.hugging_face(ids, use_cache=False).logits[0, -1].double().log_softmax(0).cpu()

    return logs


def next_logits(model: HuggingFaceModel, token_ids: Sequence[int]) -> torch.Tensor:
    """(T, V) logits of one whole forward over `token_ids`."""
    network = model.hugging_face
    return _logits(network, next(network.parameters())._version, tuple(token_ids)).clone()


@lru_cache(maxsize=256)
def _logits(network: PreTrainedModel, version: int, token_ids: tuple[int, ...]) -> torch.Tensor:
    """Tests ask for the same ids again and again; `version` grows when weights are changed in place."""
    with torch.no_grad():
        logits: torch.Tensor = network(input_ids=torch.tensor([token_ids], device=network.device), use_cache=False).logits[0]
    return logits


def assert_close(expected: torch.Tensor, received: torch.Tensor, tolerance: float, *, equal_nan: bool = False) -> None:
    """Compare two tensors of one shape: no entry may differ by more than `tolerance`."""
    torch.testing.assert_close(received, expected, rtol=0, atol=tolerance, equal_nan=equal_nan, check_dtype=False, check_device=False)


def greedy_ids(
    model: HuggingFaceModel,
    token_ids: Sequence[int],
    max_tokens: int,
    *,
    can_begin: Extends = lambda text: True,
    is_whole: Extends = lambda text: True,
) -> list[int]:
    """The ids that greedy decoding adds: the most probable token among those after which the text `can_begin` an accepted one."""
    ids, text = list(token_ids), b""
    for _ in range(max_tokens):
        logits = next_logits(model, ids)[-1].tolist()
        allowed = [
            token_id
            for token_id, data in enumerate(model.tokenizer.token_bytes)
            if (data and can_begin(text + data)) or (token_id in model.eos_token_ids and is_whole(text))
        ]
        best = max(allowed, key=lambda token_id: (logits[token_id], -token_id))
        if best in model.eos_token_ids:
            break
        ids.append(best)
        text += model.tokenizer.token_bytes[best] or b""
        if set(allowed) == set(model.eos_token_ids):
            break
    return ids[len(token_ids) :]


def forced_ids(model: HuggingFaceModel, accepted: Sequence[bytes], text: bytes, before: Sequence[int]) -> list[int]:
    """The ids that follow `text` without a choice, where one of the texts `accepted` is being written.

    What all that is left begins with is encoded, up to a whole character; it is cut where a token that some accepted text
    allows reaches further.
    """

    def rest(done: bytes) -> list[bytes]:
        return [option[len(done) :] for option in accepted if option.startswith(done)]

    forced = _common_start(rest(text))
    while forced:
        try:
            forced.decode()
            break
        except UnicodeDecodeError:
            forced = forced[:-1]
    ids: list[int] = []
    for token_id in model.tokenizer.encode_inside(forced.decode(), before) if forced else []:
        done = text + model.tokenizer.text_bytes(ids)
        left = len(text + forced) - len(done)
        tokens = [data for data in model.tokenizer.token_bytes if data and len(data) > left]
        if any(option.startswith(data) for option in rest(done) for data in tokens):
            break
        ids.append(token_id)
    return ids


def rescored(model: HuggingFaceModel, token_ids: Sequence[int]) -> list[float]:
    """The log-probability of every id but the first, which gets 0, by one whole forward."""
    logprobs = next_logits(model, token_ids).log_softmax(-1)
    found = logprobs[:-1].gather(-1, torch.tensor(token_ids[1:], dtype=torch.long)[:, None])
    return [0.0, *found[:, 0].tolist()]


def _common_start(texts: Sequence[bytes]) -> bytes:
    """What all `texts` begin with."""
    length = 0
    while all(length < len(text) and text[length] == texts[0][length] for text in texts):
        length += 1
    return texts[0][:length]


def ends_of(row: StateRow) -> float:
    """The log-probabilities of the ends of text that were drawn in a row and count in its weight."""
    return sum(logprob for _, logprob in row.counted.ends)
