"""`TextScan`: incremental multi-pattern search over generated tokens: an Aho-Corasick automaton for phrases, over characters (case-folded
if wanted) and word boundaries, and simulation of DFAs from every starting character for patterns. Each match is mapped back to the token
that it begins in; `held_bytes`, counted from a token's beginning, are those that are or may become a match. `ScanPolicy`: the base of `Ban`
and `Replace`, policies that react to matches.

A `ScanState` is immutable and links to the state one token before (a persistent linked list), so a rewind takes an older state, and no
token is read twice.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from outlines_cont.interfaces import Tokenizer
from outlines_cont.policies.piece_text import tail_tokens
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.row_view import RowView
from outlines_cont.text_search.pattern_search import Found, PatternSearch
from outlines_cont.text_search.phrase_trie import PhraseTrie
from outlines_cont.text_search.text_symbols import BEGINNING, WORD_ENDS, SymbolReader, Symbols


@dataclass(frozen=True, slots=True)
class Match:
    """A phrase or a pattern that was found."""

    rule: int  # the index of the phrase, or the number of phrases and the index of the pattern
    token: int  # the index in the piece of the token with its first byte; 0 if it begins before the piece
    # identifies the match: the rule, the length of the text before that token and a digest of it, and the offset in the token
    key: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ScanState:
    """The state of a search after some tokens, immutable, linked to the state one token before."""

    before: ScanState | None = None  # the state one token before; None at the beginning of the piece
    # the length of the piece
    num_tokens: int = 0
    num_bytes: int = 0
    digest: int = 0  # CRC-32 of its bytes
    node: int = 0  # in the trie of phrases
    num_symbols: int = 0  # how many symbols the piece has
    # see `Symbols`
    held: bytes = b""
    in_word: bool = False
    search: PatternSearch | None = None  # the search for patterns
    matches: tuple[Match, ...] = ()  # those that end in the last token, ordered by their beginning
    num_passed: int = 0  # the matches of this many further tokens are ignored
    refused: int | None = None  # the index of the rule that was refused here last
    num_healed: int = 0  # how many of the next bytes respell the prompt, see `RowView.healed`
    num_joined: int = 0  # how many symbols the character has that began in earlier tokens


@dataclass(frozen=True, eq=False)
class TextScan:
    """A search for phrases and patterns in the tokens of one tokenizer."""

    reader: SymbolReader  # converts bytes to the symbols that are compared
    trie: PhraseTrie[str]  # the phrases as such symbols
    search: PatternSearch | None  # the patterns; None without any
    tokenizer: Tokenizer  # whose tokens are read
    _read: dict[tuple[int, bool], Symbols] = field(default_factory=dict, repr=False)

    @property
    def most(self) -> int:
        """The most tokens from the beginning of a match to where it is found, if each has a character or more, as nearly all have."""
        patterns = self.search.patterns if self.search is not None else ()
        return 1 + max((*self.trie.length, *(pattern.most for pattern in patterns)), default=0)

    def initial(self, row: RowView, *, include_prompt: bool) -> ScanState:
        """Return the state before the generated span; with `include_prompt`, after reading the end of the text before it."""
        healed = len(row.healed)
        state = ScanState(search=self.search)
        if not include_prompt:
            return replace(state, num_healed=healed)
        num_bytes = 8 * self.most + 65  # a character has up to 4, and as many again are before it
        for token_id in tail_tokens(self.tokenizer, row.token_ids[: row.piece_start], num_bytes):
            state = self.push(state, token_id)
        if healed:
            state = self._pushed(state, row.healed, self.reader.read(row.healed, _open(state)))
        search = state.search
        if search is not None:
            # Offsets count from the piece, so those of matches that begin before it are negative.
            threads = tuple(replace(thread, start=thread.start - search.num_bytes) for thread in search.threads)
            search = replace(search, threads=threads, num_bytes=0)
        return ScanState(node=state.node, held=state.held, in_word=state.in_word, search=search, num_healed=healed)

    def push(self, state: ScanState, token_id: int) -> ScanState:
        """Return the state after one more token. Cost: 1 us and 0.1 us per character, for any number of phrases."""
        data = self.tokenizer.token_bytes[token_id] or b""
        if state.num_healed:
            text = data[state.num_healed :]
            after = self._pushed(state, text, self.reader.read(text, _open(state)))
            return replace(after, num_healed=max(state.num_healed - len(data), 0))
        return self._pushed(state, data, self._symbols(token_id, data, state))

    def _pushed(self, state: ScanState, data: bytes, symbols: Symbols) -> ScanState:
        """Return the state after a token that has these bytes and symbols."""
        node, step, ends = state.node, self.trie.step, self.trie.ends
        phrases: list[tuple[int, int]] = []
        for number, symbol in enumerate(symbols.symbols, state.num_symbols + 1):
            node = step(node, symbol)
            if node and ends(node):
                phrases += [(rule, number - self.trie.length[rule]) for rule in ends(node)]
        search, found = state.search, list[Found]()
        if search is not None:
            search, found = search.push(data)
        after = ScanState(
            state,
            state.num_tokens + 1,
            state.num_bytes + len(data),
            crc32(data, state.digest),
            node,
            state.num_symbols + len(symbols.symbols),
            symbols.held,
            symbols.in_word,
            search,
            num_passed=state.num_passed,
            num_joined=self._num_joined(state, data) if state.held else 0,
        )
        if not phrases and not found:
            return after
        if state.num_passed:
            return replace(after, num_passed=state.num_passed - 1)
        return replace(after, matches=self._matches(after, phrases, found))

    def at_end(self, state: ScanState) -> tuple[Match, ...]:
        """Return the further matches if the text ends here, such as of whole words."""
        if state.num_passed:
            return ()
        phrases = list[tuple[int, int]]()
        if state.in_word:
            ends = self.trie.ends(self.trie.step(state.node, WORD_ENDS))
            phrases = [(rule, state.num_symbols + 1 - self.trie.length[rule]) for rule in ends]
        return self._matches(state, phrases, state.search.at_end() if state.search is not None else [])

    def held_bytes(self, state: ScanState) -> int:
        """Return how many trailing bytes are in a match, or may still become one, counted from the beginning of a token."""
        depth = self.trie.depth[state.node]
        starts = [self._before_symbol(state, state.num_symbols - depth)] if depth else []
        broken = self.trie.step(state.node, BROKEN) if state.held else 0
        if broken:  # the incomplete character may turn out to be invalid UTF-8
            starts.append(self._before_symbol(state, state.num_symbols + 1 - self.trie.depth[broken]))
        if state.search is not None and state.search.open_since < state.num_bytes:
            starts.append(_before_byte(state, state.search.open_since))
        first = min([match.token for match in state.matches] + [start.num_tokens for start in starts], default=None)
        return 0 if first is None else state.num_bytes - state_at(state, first).num_bytes

    def _symbols(self, token_id: int, data: bytes, state: ScanState) -> Symbols:
        if state.held:
            return self.reader.read(data, _open(state))
        key = token_id, state.in_word
        known = self._read.get(key)
        if known is None:
            known = self._read[key] = self.reader.read(data, replace(BEGINNING, in_word=state.in_word))
        return known

    def _num_joined(self, state: ScanState, data: bytes) -> int:
        """Return how many symbols the character has whose first bytes are held, U+FFFD if no character begins so; 0 if it goes on."""
        text, _ = codecs.utf_8_decode(state.held + data[:3], "replace", False)
        return len(self.reader.read(text[:1].encode(), Symbols(in_word=state.in_word)).symbols)

    def _matches(
        self, state: ScanState, phrases: Sequence[tuple[int, int]], found: Sequence[Found]
    ) -> tuple[Match, ...]:
        matches = []
        for rule, symbol in phrases:
            before = self._before_symbol(state, symbol)
            matches.append(_match(rule, before, symbol - before.num_symbols))
        for match in found:
            before = _before_byte(state, match.start)
            matches.append(_match(len(self.trie.length) + match.pattern, before, match.start - before.num_bytes))
        return tuple(sorted(matches, key=lambda match: match.token))

    def _before_symbol(self, state: ScanState, symbol: int) -> ScanState:
        """Return the state before the token with the first byte of a symbol; the initial one, if it is before the piece."""
        before = state.before
        while before is not None and (
            before.num_symbols > symbol
            or (before.held and symbol < before.num_symbols + max(state.num_joined, 1) and before.before is not None)
        ):
            state, before = before, before.before
        return before or state


class ScanPolicy(Policy[ScanState]):
    """Base of policies that search the generated tokens. `scan` is the search over the tokens of a model, None before `for_model`."""

    scan: TextScan | None

    @property
    def horizon(self) -> int:
        """As many positions as the longest match has characters."""
        return self.known_scan.most

    def advance(self, state: ScanState, token_id: int) -> ScanState:
        """Return the state after one more token, with what was found in it."""
        return self.known_scan.push(state, token_id)

    def held_bytes(self, state: ScanState) -> int:
        """Return how many trailing bytes are in a match, or may still become one."""
        return self.known_scan.held_bytes(state)

    @property
    def known_scan(self) -> TextScan:
        """The search; `TypeError` before `for_model`."""
        if self.scan is None:
            raise TypeError(
                "expected a policy for a model: call `for_model(model)`, as generators do with `policies=[...]`"
            )
        return self.scan


BROKEN = "\ufffd"
"""The symbol of bytes that are not UTF-8."""


def _open(state: ScanState) -> Symbols:
    return Symbols(held=state.held, in_word=state.in_word)


def _match(rule: int, before: ScanState, offset: int) -> Match:
    return Match(rule, before.num_tokens, (rule, before.num_bytes, before.digest, offset))


def _before_byte(state: ScanState, offset: int) -> ScanState:
    """Return the state before the token with a byte; the initial one, if it is before the piece."""
    before = state.before
    while before is not None and before.num_bytes > offset and before.before is not None:
        before = before.before
    return before or state


def state_at(state: ScanState, num_tokens: int) -> ScanState:
    """Return the state after the first `num_tokens` tokens of the generated span; the state itself where there are fewer."""
    while state.num_tokens > num_tokens and state.before is not None:
        state = state.before
    return state
