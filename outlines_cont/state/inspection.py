"""`inspection`: what the inspector shows of rows, as values of JSON: for each token how it came about and its log-probabilities, and, where
logits are computed, what else was possible there: the most probable tokens with and without the constraint, the entropy of the model, the
probability that the constraint has removed, and why. Tokens that a row shares with an earlier one are there once.

Constraints are known of the last generated span, until the state is saved, cut or added to.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from fsm import FSMError, TokenFSM
from outlines_cont.interfaces import LanguageModel, Tokenizer
from outlines_cont.state.image_span import PLACEHOLDER
from outlines_cont.state.row import SCORED, Rows, StateRow

MAX_POSITIONS = 2_000
"""The most positions of which logits are computed, all rows together; those at the ends of rows."""

_CHUNK_BYTES = 64 << 20  # of the logits that are held at the same time
_MAX_EXPLAINED = 100  # positions of a row, of which the sources of the constraint are searched
_DIGITS = 5
_LONGEST = 2_000


def inspection(
    model: LanguageModel, rows: Rows, top: int = 0, first: int = 0, max_rows: int | None = None
) -> dict[str, Any]:
    """Return what is shown of some rows.

    Args:
        model: the model of the rows.
        rows: B tuples of S rows.
        top: how many of the most probable tokens are shown at each position; 0: nothing that needs logits.
        first: the index of the first token of each row that is shown.
        max_rows: how many rows are shown; None for all.

    Returns:
        `model`, its name; `first`; `more`, the number of rows that are not shown; and `rows`, with `shared`: the number of an earlier
        row, and how many of its first tokens are those of this one; `tokens`, the others as `[id, text, kind, logprob,
        sampling_logprob, more]` (kinds are the letters of `StateRow`, numbers are null if nothing was drawn); and what is known of
        the whole row.

    Cost: without `top` a pass over the tokens. With it the last `MAX_POSITIONS` tokens are fed once more, and those before them if
    they are not cached; at each position the vocabulary is sorted as far as needed; at the first 100 of a
        row under a constraint, some 30 ms more.
    """
    left, before, out = MAX_POSITIONS, list[list[Any]](), list[dict[str, Any]]()
    flat = [(batch, sample, row) for batch, group in enumerate(rows) for sample, row in enumerate(group)]
    for batch, sample, row in flat[:max_rows]:
        tokens = [*_tokens(row, model.tokenizer)][first:]
        shared = _shared(before, tokens)
        before.append(tokens)
        if top and row.error is None:
            # Tokens that are pinned cannot be fed again, and the ids of an image have no probabilities.
            last = max(row.pinned, row.images[-1].stop if row.images else 0)
            start = max(first + shared[1], last + 1, len(row.token_ids) - left)
            indices = range(min(start, len(row.token_ids)), len(row.token_ids))
            left -= len(indices)
            for index, look in zip(indices, _looks(model, row, indices, top), strict=True):
                tokens[index - first][5] |= look
        shown = {"batch": batch, "sample": sample, "shared": shared, "tokens": tokens[shared[1] :]}
        out.append(shown | _facts(row))
    name = str(getattr(model, "name", "") or model)
    return {"model": name, "first": first, "more": len(flat) - len(out), "rows": out}


def _tokens(row: StateRow, tokenizer: Tokenizer) -> Iterator[list[Any]]:
    """Yield the tokens of a row. A character belongs to the token that completes it."""
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    refused = {} if row.piece is None else {entry.index: entry for entry in row.piece.exclusions}
    drafted = 0 if row.piece is None else row.piece.drafted << row.piece.start
    images = {index: span for span in row.images for index in range(span.start, span.stop)}
    for index, token_id in enumerate(row.token_ids):
        data = tokenizer.token_bytes[token_id]
        text = tokenizer.special_tokens.get(token_id, f"<{token_id}>") if data is None else decoder.decode(data)
        if (span := images.get(index)) is not None:
            text = PLACEHOLDER if index == span.stop - 1 else ""
            known: dict[str, Any] = {"image": span.digest, "special": True}
            if text and span.pixels is not None and span.pixels.picture:
                known["picture"] = span.pixels.picture
            yield [token_id, text, chr(row.kinds[index]), None, None, known]
            continue
        more: dict[str, Any] = {"special": True} if data is None else {"bytes": data.hex()} if not text else {}
        if drafted >> index & 1:
            more["drafted"] = True
        if (entry := refused.get(index)) is not None:
            names = [name_of(one, tokenizer) for one in sorted(entry.excluded | entry.avoided)[:20]]
            more |= {"retries": entry.retries, "refused": names}
        numbers = [
            round(values[index], _DIGITS) if row.kinds[index] in SCORED else None
            for values in (row.logprobs, row.sampling_logprobs)
        ]
        yield [token_id, text, chr(row.kinds[index]), *numbers, more]


def _shared(before: Sequence[list[Any]], tokens: list[Any]) -> list[int]:
    """Return the number of the row that has most first tokens in common with these, and how many."""

    def common(other: list[Any]) -> int:
        # The tokens at the end of what is shared have no logits yet, or those of the other row.
        plain = [_same(token) for token in other]
        return bisect_left(range(min(len(plain), len(ours))), True, key=lambda n: plain[: n + 1] != ours[: n + 1])

    ours = [_same(token) for token in tokens]
    counts = [common(other) for other in before]
    most = max(counts, default=0)
    return [counts.index(most), most] if most else [0, 0]


def _same(token: list[Any]) -> list[Any]:
    """Return what two tokens have in common that are shown once: not their logits, but the image that they stand for."""
    return [*token[:5], token[5].get("image")]


def _facts(row: StateRow) -> dict[str, Any]:
    """Return what is known of a whole row."""
    return {
        "cached": row.cached,
        "piece": None if row.piece is None else row.piece.start,
        "source": "" if row.piece is None else row.piece.source[:_LONGEST],
        "retries": 0 if row.piece is None else row.piece.retries,
        "reused": 0 if row.piece is None else row.piece.reused,
        "finish": row.finish_reason,
        "weight": round(row.weight, _DIGITS),
        "error": "" if row.error is None else f"{type(row.error).__name__}: {row.error}"[:_LONGEST],
        "value": "" if row.value is None else json.dumps(row.value, default=repr, ensure_ascii=False)[:_LONGEST],
    }


def name_of(token_id: int, tokenizer: Tokenizer) -> str:
    """Return the text of a token by itself, the name of a special one."""
    data = tokenizer.token_bytes[token_id] if token_id < len(tokenizer.token_bytes) else None
    return tokenizer.special_tokens.get(token_id, f"<{token_id}>") if data is None else data.decode(errors="replace")


def _looks(model: LanguageModel, row: StateRow, indices: range, top: int) -> Iterator[dict[str, Any]]:
    """Yield what was possible at each of some positions."""
    if not indices:
        return
    (fed,) = model.prefilled([row])
    states = constrained(row)
    size = max(_CHUNK_BYTES // (4 * model.vocab_size), 1)
    num_explained = 0
    for start in range(0, len(indices), size):
        chunk = indices[start : start + size]
        lines = model.read_logits(fed, [index - 1 for index in chunk]).float().log_softmax(-1).cpu()
        for index, line in zip(chunk, lines, strict=True):
            look = _look(line, row.token_ids[index], top, model.tokenizer)
            if index in states:
                token_fsm, state, written = states[index]
                allowed = _allowed(token_fsm, state, len(line))
                look |= _under(line, allowed, top, model.tokenizer)
                refused = next((token_id for token_id, *_ in look["top"] if not allowed[token_id]), None)
                if refused is not None:
                    look["why"] = str(token_fsm.explain(state, refused))
                if num_explained < _MAX_EXPLAINED:
                    look["wanted"] = token_fsm.wanted(state, written)
                    num_explained += 1
            yield look


def _look(line: torch.Tensor, token_id: int, top: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what the model itself says at a position, of (V,) log-probabilities."""
    entropy = -(line.exp() * line.clamp(min=-1e4)).sum() / math.log(2)
    return {"model": _number(line[token_id]), "entropy": _number(entropy), "top": _ranked(line, top, tokenizer)}


def _under(line: torch.Tensor, allowed: torch.Tensor, top: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return what the constraint makes of it: the probability that it removes, and the most probable tokens that are left."""
    mass = line[allowed].logsumexp(0)
    inside = torch.where(allowed, line - mass, -torch.inf)
    count = int(allowed.sum())
    ranked = _ranked(inside, min(top, count), tokenizer)
    return {"masked": _number(-torch.expm1(mass)), "allowed": count, "inside": ranked}


def _ranked(line: torch.Tensor, top: int, tokenizer: Tokenizer) -> list[list[Any]]:
    logprobs, token_ids = line.topk(min(top, len(line)))
    pairs = zip(token_ids.tolist(), logprobs, strict=True)
    return [[token_id, name_of(token_id, tokenizer), _number(logprob)] for token_id, logprob in pairs]


def _number(value: torch.Tensor) -> float | None:
    """Return a number of the page; None for an infinity or NaN, which JSON does not have."""
    number = float(value)
    return round(number, _DIGITS) if math.isfinite(number) else None


def _allowed(token_fsm: TokenFSM, state: int, vocab_size: int) -> torch.Tensor:
    """Return (V,) bool: what the constraint allows."""
    bits = np.unpackbits(token_fsm.bitmask(state).view(np.uint8), bitorder="little")[:vocab_size]
    found = torch.zeros(vocab_size, dtype=torch.bool, device="cpu")
    found[: len(bits)] = torch.from_numpy(bits).bool()
    return found


def constrained(row: StateRow) -> dict[int, tuple[TokenFSM, int, bytes]]:
    """Return the constraint before each token of the last span: the token FSM, its state, and what of its text was written.

    Empty if it is not known, up to the first token that leaves the language, such as with `end="free"`.
    """
    constraint = getattr(row.piece.maker, "constraint", None) if row.piece is not None else None
    token_fsm = getattr(constraint, "token_fsm", None)
    if row.piece is None or constraint is None or not isinstance(token_fsm, TokenFSM):
        return {}
    found: dict[int, tuple[TokenFSM, int, bytes]] = {}
    healed = constraint.spelled(row.token_ids[row.piece.start :])[: row.piece.healed]
    state, written = token_fsm.state_before(healed) if healed else token_fsm.initial_state, b""
    for index in range(row.piece.start, len(row.token_ids)):
        found[index] = token_fsm, state, written[len(healed) :]
        try:
            state = token_fsm.next_state(state, row.token_ids[index])
        except FSMError:
            break
        written += constraint.spelled(row.token_ids[index : index + 1])
    return found
