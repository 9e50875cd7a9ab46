"""`field_probabilities`: the exact probability of every text that a field of a written JSON text might have, such as an enum or a boolean.

The texts are those that the language of the generator allows at that place, found by a search of its automaton. Their probabilities are
those of `probabilities.py`, from the end of the last token before the field on: a token that holds the beginning of the field and what
stands before it, such as `":"`, is a part of each spelling. Tokens that reach beyond a text, such as `",`, count for it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import TokenNotAllowed
from outlines_cont.checks import check, check_int, check_one_of
from outlines_cont.errors import OptionError, located, shortened
from outlines_cont.events.json_paths import byte_ranges
from outlines_cont.generation.option_prior import opened_prompts, warn_of_shares
from outlines_cont.generation.piece_maker import PieceMaker, squeezed
from outlines_cont.generation.probabilities import Prefix, Probabilities, Spellings, Tree, sum_of_logs, traverse
from outlines_cont.policies.constraint import CheckedConstraint, Constraint
from outlines_cont.policies.healing import token_starts
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.text import kept_tokens

MAX_OPTIONS = 1_000
"""The most texts of a field."""
_MAX_VISITED = 50_000  # the most bytes that a search for them reads


class Field(NamedTuple):
    """A field of a JSON text, up to the last token before it."""

    row: StateRow  # the row up to there, with its keys and values
    state: int  # of the token FSM there
    before: bytes  # what stands between there and the field
    texts: list[bytes]  # the texts that the field might have
    written: tuple[int, ...]  # the tokens of the JSON text up to there

    def behind(self, prompt: StateRow) -> Field:
        """Return the same field after the same beginning of a JSON text behind another prompt."""
        return self._replace(row=replace(prompt, piece=None, unscored=()).append(self.written, reset=False))


def field_probabilities(
    maker: PieceMaker, state: SequenceState, path: str, *, spellings: Spellings, max_prefixes: int, against: Any = None
) -> Any:
    """Return `Probabilities` of the values of a field for each row of a state that `maker` has written, in the shape of its values.

    `SequenceState.alternatives` documents arguments, errors and cost.
    """
    check("path", path, isinstance(path, str), "the path of a value, such as 'address.city'")
    check_one_of("spellings", spellings, ("canonical", "all"))
    check_int("max_prefixes", max_prefixes, 1)
    given: dict[str, Any] = {"spellings": spellings, "limit": max_prefixes}
    fields = [
        [_located_field(maker, state, (b, s), path) for s in range(state.num_samples)] for b in range(state.batch_size)
    ]
    trees = [
        [_tree(maker, state, (b, s), field, given) for s, field in enumerate(group)] for b, group in enumerate(fields)
    ]
    prompts = [] if against is None else _prompts(maker, against)
    others = [
        [[FieldTree(maker, field.behind(one), **given) for one in prompts] for field in group] for group in fields
    ]
    traverse(
        maker,
        [tree for group in trees for tree in group] + [one for group in others for trees in group for one in trees],
    )
    if prompts:
        warn_of_shares([math.exp(reduce(sum_of_logs, tree.own)) for group in trees for tree in group])
    return squeezed(
        [
            [
                tree.result() if not prompts else _calibrated(tree.result(), [one.result() for one in before])
                for tree, before in pairs
            ]
            for pairs in (zip(group, before, strict=True) for group, before in zip(trees, others, strict=True))
        ]
    )


def _prompts(maker: PieceMaker, against: Any) -> list[StateRow]:
    if isinstance(against, str) and against == "batch":
        raise OptionError("expected prompts without content as `against` for a field, got 'batch'", "against")
    return opened_prompts(maker.model, against)


def _calibrated(found: Probabilities, priors: Sequence[Probabilities]) -> Probabilities:
    """Return probabilities divided by the mean of those of priors, each conditioned on the values, and normalised.

    Raises:
        OptionError: the prior of a value, or the probability of each, is zero.
    """
    logs = [[_log(one) for one in prior.conditional.values()] for prior in priors]
    prior = [reduce(sum_of_logs, column) - math.log(len(logs)) for column in zip(*logs, strict=True)]
    own = [_log(one) for one in found.conditional.values()]
    if not all(map(math.isfinite, prior)) or max(own) == -math.inf:
        raise OptionError(
            "expected prompts as `against` after which each value has some probability, got none for one of them. Give others.",
            "against",
        )
    divided = [log - before for log, before in zip(own, prior, strict=True)]
    total = reduce(sum_of_logs, divided)
    return replace(
        found,
        log_probabilities=tuple(log - total for log in divided),
        log_conditional=tuple(own),
        log_prior=tuple(prior),
    )


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def _located_field(maker: PieceMaker, state: SequenceState, at: tuple[int, int], path: str) -> Field:
    try:
        return _field(maker, state.rows[at[0]][at[1]], path)
    except OptionError as error:
        raise _located(state, at, error) from None


def _tree(
    maker: PieceMaker, state: SequenceState, at: tuple[int, int], field: Field, given: Mapping[str, Any]
) -> FieldTree:
    try:
        return FieldTree(maker, field, **given)
    except OptionError as error:
        raise _located(state, at, error) from None


def _located(state: SequenceState, at: tuple[int, int], error: OptionError) -> Exception:
    return located(error, *at) if state.batch_size * state.num_samples > 1 else error


def _field(maker: PieceMaker, row: StateRow, path: str) -> Field:
    """Return the field of the last piece of a row at a path."""
    constraint = maker.constraint.constraint if isinstance(maker.constraint, CheckedConstraint) else maker.constraint
    if not isinstance(constraint, Constraint) or row.piece is None or not maker.is_whole(row):
        raise OptionError(
            "expected a state whose last piece is a whole JSON text of this generator, for the values that a field might have. "
            "Take the state that `continuous(generate.json(model, schema))` has returned.",
            "state",
        )
    tokens = [maker.model.tokenizer.text_bytes([token_id]) for token_id in row.token_ids[row.piece.start :]]
    data = b"".join(tokens)
    start = row.piece.healed + _begin(data[row.piece.healed :], path)
    ends = [0, *accumulate(map(len, tokens))]
    count = max(index for index, end in enumerate(ends) if end <= start and (end < start or index < len(tokens)))
    fsm = constraint.token_fsm
    at = fsm.state_before(data[: row.piece.healed]) if row.piece.healed else fsm.initial_state
    before = data[ends[count] : start]
    try:
        for token_id in row.token_ids[row.piece.start : row.piece.start + count]:
            at = fsm.next_state(at, token_id)
        texts = scalar_texts(fsm.automaton, fsm.automaton.next_state(at, before), path)
    except TokenNotAllowed as error:
        raise OptionError(
            f"expected the generator that wrote the state as `generator`, got one that does not write "
            f"{shortened(repr(data[:start].decode(errors='replace')))}. Pass the one whose schema is that of the state.",
            "generator",
        ) from error
    stop = row.piece.start + count
    return Field(kept_tokens(row, stop), at, before, texts, tuple(row.token_ids[row.piece.start : stop]))


def _begin(text: bytes, path: str) -> int:
    """Return the offset of the value at a path."""
    try:
        found = byte_ranges(text)
    except ValueError:
        raise OptionError(
            f"expected a JSON text, got {shortened(repr(text.decode(errors='replace')))}", "state"
        ) from None
    if path not in found:
        names = ", ".join(map(repr, found))
        raise OptionError(f"expected the path of a scalar value, one of {shortened(names, 200)}, got {path!r}", "path")
    return found[path][0]


# The number, literal or string that a JSON text begins with, if that is whole.
_NUMBER = re.compile(rb"-?[0-9]*(\.[0-9]*)?([eE][-+]?[0-9]*)?")
_WHOLE = re.compile(rb'"(?:[^"\\]|\\.)*"|true|false|null', re.DOTALL)


def scalar_texts(automaton: Automaton, state: int, path: str = "") -> list[bytes]:
    """Return the scalars with which the texts that follow a state begin, in byte order; `OptionError` where they are too many.

    Cost: a step of the automaton for each byte of their trie.
    """
    found, stack, num_visited = [], [(b"", state)], 0
    while stack:
        text, at = stack.pop()
        moves = automaton.moves(at)
        if _WHOLE.fullmatch(text):
            found.append(text)
            continue
        if (
            text
            and _NUMBER.fullmatch(text)
            and (automaton.is_accepting(at) or any(byte not in b"0123456789.eE+-" for byte in moves))
        ):
            found.append(text)
        wanted = [byte for byte in moves if not text[:1] or text[:1] in b'"tfn' or byte in b"0123456789.eE+-"]
        num_visited += len(wanted)
        is_nested = not text and any(byte in b"[{" for byte in wanted)
        if is_nested or len(found) > MAX_OPTIONS or num_visited > _MAX_VISITED:
            raise OptionError(
                f"expected a field of at most {MAX_OPTIONS:,} values, such as an enum or a boolean, got {path!r}, which may have "
                f"{'an object or a list' if is_nested else 'more'}. Bound it in the schema.",
                "path",
            )
        stack += [(text + bytes([byte]), moves[byte]) for byte in wanted if byte not in b" \t\r\n" or text]
    return sorted(found)


class FieldTree(Tree):
    """The texts of one field of a row, and the log-probabilities that have reached them.

    A value may have several texts, such as `1` and `1.0`; a share counts the shortest, with which the others begin.
    """

    def __init__(self, maker: PieceMaker, field: Field, spellings: Spellings, limit: int) -> None:
        """Take a field; no text of a value may begin a text of another."""
        values = [json.loads(text) for text in field.texts]
        shortest, self._is_shortest = b"", list[bool]()
        for text, value in zip(field.texts, values, strict=True):
            self._is_shortest.append(not shortest or not text.startswith(shortest))
            if self._is_shortest[-1]:
                shortest = text
            elif json.loads(shortest) != value:
                raise OptionError(
                    f"expected values of which none begins another, got {shortest.decode()} and {text.decode()}. "
                    "What is written up to the end of the first does not decide between them.",
                    "path",
                )
        if len({*values}) < len({(value, type(value) is bool) for value in values}):
            raise OptionError(
                "expected values that differ, got a number and a boolean that are equal in Python", "path"
            )
        texts = [field.before + text for text in field.texts]
        super().__init__(
            maker, field.row, values, texts, spellings=spellings, end=False, limit=limit, state=field.state
        )
        self._starts = token_starts(maker.model)

    def tail(self, prefix: Prefix) -> tuple[int, ...]:
        """Return none: the logits before the last token of a spelling are needed."""
        return ()

    def result(self) -> Probabilities:
        """Return the sums of each value, those under the constraint for the text before the field that was written."""
        constrained, own, total = dict[Any, float](), dict[Any, float](), -math.inf
        for value, log, share in zip(self.options, self.constrained, self.own, strict=True):
            constrained[value] = sum_of_logs(constrained.get(value, -math.inf), log)
            own[value] = sum_of_logs(own.get(value, -math.inf), share)
            total = sum_of_logs(total, log)
        return Probabilities((*constrained,), tuple(log - total for log in constrained.values()), (*own.values(),))

    def _is_decided(self, options: Sequence[int]) -> bool:
        return len({self.options[option] for option in options}) == 1

    def _counted(self, prefix: Prefix) -> list[int]:
        return [option for option in super()._counted(prefix) if self._is_shortest[option]]

    def _possible(self, options: Sequence[int], text: bytes) -> list[int]:
        return [i for i in options if self.texts[i].startswith(text) or text.startswith(self.texts[i])]

    def _own(self, prefix: Prefix, logits: torch.Tensor, allowed: list[int]) -> dict[int, float]:
        """Return the model's own log-probability of each next token inside of a text; add those of all that complete one."""
        logs = logits.log_softmax(0) + prefix.own
        depth, size = len(prefix.token_ids), len(prefix.text)
        inside: list[int] = []
        for option in self._counted(prefix):
            rest, spelling = self.texts[option][size:], self.canonical[option]
            if self.is_canonical and len(spelling) > depth + 1:
                inside.append(spelling[depth])
                continue
            token_ids = self._starts.spelling(rest)
            is_last = np.array(
                [len(self._tokenizer.token_bytes[token_id] or b"") >= len(rest) for token_id in token_ids], bool
            )
            if is_last.any():
                self._add(self.own, self.texts[option], [option], float(logs[token_ids[is_last]].logsumexp(0)))
            inside += [] if self.is_canonical else token_ids[~is_last].tolist()
        inside = list(dict.fromkeys(inside))
        return dict(zip(inside, logs[inside].tolist(), strict=True))
