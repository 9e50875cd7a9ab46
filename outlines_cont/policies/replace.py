"""`replace`: a policy that finds given texts in the output (exactly, by an Aho-Corasick automaton) and replaces them by others: the row
rewinds to the token that the match begins in, appends the replacement, tokenized with the bytes before the match, and continues after it.
What the last token has behind the match is dropped; replacements are not searched again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from typing import TYPE_CHECKING

from outlines_cont.checks import check_int
from outlines_cont.errors import OptionError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.spelling import encode_bytes_inside
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.row_view import RowView
from outlines_cont.policies.text_scan import Match, ScanPolicy, ScanState, TextScan, state_at
from outlines_cont.state.row import APPENDED
from outlines_cont.text_search.phrase_trie import PhraseTrie
from outlines_cont.text_search.text_symbols import SymbolReader, Symbols
from outlines_cont.unknown_option import knows_its_options

if TYPE_CHECKING:
    from outlines_cont.state.sequence_state import SequenceState

_FREE = [Branch(sample_mask=TokenSet.all)]
_READER = SymbolReader(ignore_case=False)


@dataclass(frozen=True, eq=False)
class Replace(ScanPolicy):
    """Replaces texts by others in one generated span (piece) of a row. Make one with `replace`.

    Attributes:
        texts: each text that is searched for, and its replacement.
        at_most: how many may be put into a piece; None for no limit.
        trie: the texts that are looked for.
        scan: the search over the tokens of a model; None before `for_model`.
    """

    texts: tuple[tuple[str, str], ...]
    at_most: int | None
    trie: PhraseTrie[str]
    scan: TextScan | None = None

    def __repr__(self) -> str:
        return f"replace({dict(self.texts)!r}{'' if self.at_most is None else f', at_most={self.at_most}'})"

    def for_model(self, model: LanguageModel) -> Replace:
        """Return the policy over the tokens of a model."""
        return replaced(self, scan=TextScan(_READER, self.trie, None, model.tokenizer))

    def initial(self, row: RowView) -> ScanState:
        """Return the state before the piece: what comes before it never counts."""
        return self.known_scan.initial(row, include_prompt=False)

    def branches(self, state: ScanState, row: RowView) -> list[Branch]:
        """Replace what has been found, unless it was put there; else leave the row free."""
        if not state.matches or row.was_given(len(row.token_ids) - 1):
            return _FREE
        if self.at_most is not None and self._count(row.token_ids, row) >= self.at_most:
            return _FREE
        match = min(state.matches, key=lambda match: (match.token, match.key[-1], match.rule))
        first = row.piece_start + match.token
        before = row.token_ids[:first]
        stays = self._before_match(state, match, row.token_ids[first:])
        spelled = encode_bytes_inside(self.known_scan.tokenizer, stays + self.texts[match.rule][1].encode(), before)
        return [Branch(backtrack=len(row.token_ids) - first, ff_tokens=[spelled])]

    def counts(self, state: SequenceState) -> list[list[int]]:
        """Return how many texts were put into the last piece of each row of a state, as `[batch][sample]` lists."""
        bound = self.for_model(state.model)
        return [
            [bound._count(row.token_ids, _Kinds(row.kinds, row.piece.start)) if row.piece else 0 for row in group]
            for group in state.rows
        ]

    def _count(self, token_ids: Sequence[int], row: _Kinds | RowView) -> int:
        """Return how often one of the texts stands in what was put into the piece."""
        count = 0
        run: list[int] = []
        for index in range(row.piece_start, len(token_ids) + 1):
            if index < len(token_ids) and row.was_given(index):
                run.append(token_ids[index])
            elif run:
                count += self._occurrences(self.known_scan.tokenizer.text_bytes(run))
                run = []
        return count

    def _occurrences(self, data: bytes) -> int:
        texts = sorted({new.encode() for _, new in self.texts}, key=len, reverse=True)
        count = at = 0
        while at < len(data):
            found = next((text for text in texts if data.startswith(text, at)), None)
            count, at = (count + 1, at + len(found)) if found is not None else (count, at + 1)
        return count

    def _before_match(self, state: ScanState, match: Match, token_ids: Sequence[int]) -> bytes:
        """Return the bytes that stand before a match in the token that it begins in."""
        state = state_at(state, match.token)
        data, before, healed = (
            self.known_scan.tokenizer.text_bytes(token_ids),
            Symbols(held=state.held),
            state.num_healed,
        )
        for size in range(healed, len(data)):
            read = _READER.read(data[healed:size], before)
            if len(read.symbols) == match.key[-1] and not read.held:
                return data[:size]
        return b""


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Which tokens of the last generated span of an ended row were given, not drawn."""

    kinds: bytes
    piece_start: int

    def was_given(self, index: int) -> bool:
        return self.kinds[index : index + 1] == APPENDED


@knows_its_options()
def replace(texts: Mapping[str, str], *, at_most: int | None = None) -> Replace:
    """Return a policy that replaces texts by others, whatever tokens spell them.

    The text before a match stays, what its last token has behind it is dropped, and the row continues after the new text. That counts as
    given: its log-probabilities are 0, it counts in `max_tokens` but is not cut, and nothing in it is replaced again.

    Args:
        texts: what is searched for, exactly, and its replacement. Where one begins with another, the one that ends first counts.
        at_most: how many texts may be put into a piece; after that they are left as they are. None for no limit.

    `Replace.counts(state)` returns how many were put into each row.

    Raises:
        OptionError: a text is empty or no text, or there are none.
    """
    if not isinstance(texts, Mapping) or not texts:
        raise OptionError(f"expected a dict of texts, such as `{{'</think>': 'Wait, but'}}`, got {texts!r}", "texts")
    for old, new in texts.items():
        for text in (old, new):
            if not isinstance(text, str) or not text or any("\ud800" <= character <= "\udfff" for character in text):
                raise OptionError(
                    f"expected texts of one character or more to replace and to put in their place, got {text!r}. "
                    "To have a text written otherwise, ban it: `policies.ban([...])`.",
                    "texts",
                )
    check_int("at_most", at_most, 0, is_optional=True)
    return Replace(tuple(texts.items()), at_most, PhraseTrie(_READER.phrase(old) for old in texts))
