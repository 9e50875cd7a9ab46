"""`replace`: a policy that finds given texts in the output (exactly, by an Aho-Corasick automaton) and replaces them by others: the row
rewinds to the token that the match begins in, appends the replacement, tokenized with the bytes before the match, and continues after it.
The last token's bytes after the match are dropped; what ends in a replacement, or comes after `at_most` of them (`counts`), stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from outlines_cont.checks import check_int, knows_its_options
from outlines_cont.errors import OptionError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import encode_bytes_inside
from outlines_cont.policies.branch import FREE, Branch
from outlines_cont.policies.policy import RowView
from outlines_cont.policies.text_scan import ScanPolicy, ScanState, TextScan, state_at
from outlines_cont.state.row import APPENDED, StateRow
from outlines_cont.text_search.pattern_search import PatternSearch
from outlines_cont.text_search.phrase_trie import PhraseTrie, SymbolReader


class _Rows(Protocol):
    """What `Replace.counts` reads of a `SequenceState`."""

    @property
    def model(self) -> LanguageModel: ...
    @property
    def rows(self) -> Sequence[Sequence[StateRow]]: ...


@dataclass(frozen=True, eq=False)
class Replace(ScanPolicy):
    """Replaces texts by others in one generated span (piece) of a row. Make one with `replace`.

    Attributes:
        texts: each text that is searched for, and its replacement.
        at_most: the most replacements in a piece; None for no limit.
        scan: the search for them.
    """

    texts: tuple[tuple[str, str], ...]
    at_most: int | None

    def __repr__(self) -> str:
        return f"replace({dict(self.texts)!r}{'' if self.at_most is None else f', at_most={self.at_most}'})"

    def initial(self, row: RowView) -> ScanState:
        """Return the state before the piece; the text before it is not searched."""
        return self.known_scan.initial(row, include_prompt=False)

    def branches(self, state: ScanState, row: RowView) -> list[Branch]:
        """Replace what was found, unless it is part of a replacement; else allow all tokens."""
        if not state.matches or row.was_given(len(row.token_ids) - 1):
            return FREE
        if self.at_most is not None and self._count(row.token_ids, row.piece_start, row.was_given) >= self.at_most:
            return FREE
        match = min(state.matches, key=lambda match: (match.token, match.key[3:], match.rule))
        first = row.piece_start + match.token
        before = row.token_ids[:first]
        token = self.known_scan.tokenizer.text_bytes(row.token_ids[first : first + 1])
        stays = token[: state_at(state, match.token).num_healed + match.key[3]]
        spelled = encode_bytes_inside(self.known_scan.tokenizer, stays + self.texts[match.rule][1].encode(), before)
        return [Branch(backtrack=len(row.token_ids) - first, ff_tokens=[spelled])]

    def counts(self, state: _Rows) -> list[list[int]]:
        """Return the number of replacements in the last piece of each row of a `SequenceState`, as `[batch][sample]` lists."""
        bound = self.over(state.model)

        def count(row: StateRow) -> int:
            if row.piece is None:
                return 0
            return bound._count(row.token_ids, row.piece.start, lambda index: row.kinds[index : index + 1] == APPENDED)

        return [[count(row) for row in group] for group in state.rows]

    def _count(self, token_ids: Sequence[int], start: int, was_given: Callable[[int], bool]) -> int:
        """Return how often a replacement occurs in the given tokens from index `start` on."""
        runs = groupby(range(start, len(token_ids)), was_given)
        given = ([token_ids[index] for index in run] for is_given, run in runs if is_given)
        return sum(self._occurrences(self.known_scan.tokenizer.text_bytes(run)) for run in given)

    def _occurrences(self, data: bytes) -> int:
        """Return the number of replacements in `data`, at each position the longest one."""
        texts = sorted({new for _, new in self.texts}, key=len, reverse=True)
        return len(re.findall(b"|".join(re.escape(text.encode()) for text in texts), data))


@knows_its_options()
def replace(texts: Mapping[str, str], *, at_most: int | None = None) -> Replace:
    """Return a policy that replaces texts by others, independently of the tokens that spell them.

    The text before a match stays, the bytes of its last token after it are dropped, and the row continues after the replacement. That
    counts as given: its log-probabilities are 0, it counts in `max_tokens` but is not cut, and nothing in it is replaced again.

    Args:
        texts: what is searched for, exactly, and its replacement. Where one begins with another, the one that ends first counts.
        at_most: the most replacements in a piece; later matches stay. None for no limit.

    `Replace.counts(state)` returns the number of replacements in each row.

    Raises:
        OptionError: a text is empty or not a text, or there are none.
    """
    if not isinstance(texts, Mapping) or not texts:
        raise OptionError(f"expected a dict of texts, such as `{{'</think>': 'Wait, but'}}`, got {texts!r}", "texts")
    for old, new in texts.items():
        for text in (old, new):
            if not isinstance(text, str) or not text or any("\ud800" <= character <= "\udfff" for character in text):
                raise OptionError(
                    f"expected texts of one character or more as texts and replacements, got {text!r}. "
                    "To generate another text instead, ban it: `policies.ban([...])`.",
                    "texts",
                )
    check_int("at_most", at_most, 0, is_optional=True)
    reader = SymbolReader(ignore_case=False)
    scan = TextScan(reader, PhraseTrie(map(reader.phrase, texts)), PatternSearch({}))
    return Replace(tuple(texts.items()), at_most, scan=scan)
