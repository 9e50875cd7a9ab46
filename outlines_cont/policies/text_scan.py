"""`TextScan`: incremental multi-pattern search over generated tokens: an Aho-Corasick automaton for phrases, over characters (case-folded
if wanted) and word boundaries, and simulation of DFAs from every starting character for patterns. Each match is mapped back to the token
that it begins in; `held_bytes`, counted from a token's beginning, are those that are or may become a match. `ScanPolicy`: the base of `Ban`
and `Replace`, policies that react to matches.

A `ScanState` is immutable and links to the state one token before (a persistent linked list), so a rewind takes an older state, and no
token is read twice.

`Alternatives`: local best-of-n search around a ban: from the position that it rewound to, up to `count` different first tokens are each
continued to the end of their word (8 tokens at most), and the most probable continuation is kept. Only for rows that take the most probable
token; a row that draws at random keeps what it draws. Each continuation costs forwards and a retry.

Without it a row takes the next most probable token, often a bad choice: a model that may not write `Leila` begins with `St`, and
continues as if nothing had been refused. To try another continuation the row rewinds and avoids the first token of the present one; the
best one is generated again, unless it was tried last.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from outlines_cont.interfaces import Tokenizer
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.healing import text_before
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.text_search.pattern_search import Found, PatternSearch
from outlines_cont.text_search.phrase_trie import BEGINNING, WORD_ENDS, PhraseTrie, SymbolReader, Symbols


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
        text = text_before(row, self.tokenizer, num_bytes)
        state = self._pushed(state, text, self.reader.read(text, BEGINNING))
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


_MAX_TOKENS = 8
_WORD_END = re.compile(r"\w\W")


@dataclass(frozen=True, slots=True)
class Search:
    """The continuations from one position."""

    # the first token and the score of each continuation before the present one
    tried: tuple[tuple[int, float], ...] = ()
    num_tokens: int = 0  # how many tokens the present continuation has
    text: bytes = b""  # their bytes
    is_whole: bool = False  # whether it is long enough to be compared
    chosen: int | None = None  # the first token of the continuation that was chosen; None before the choice

    def advanced(self, data: bytes) -> Search | None:
        """Return the search after one more token; None when it is over."""
        if self.is_whole or self.chosen is not None:
            return None
        text, num_tokens = self.text + data, self.num_tokens + 1
        is_whole = num_tokens >= _MAX_TOKENS or _WORD_END.search(text.decode(errors="ignore")) is not None
        return replace(self, num_tokens=num_tokens, text=text, is_whole=is_whole)


@dataclass(frozen=True, slots=True, eq=False)
class AlternativesState:
    """The state of the inner policy, and the search; None where no continuations are compared."""

    inner: Any
    search: Search | None = None


class Alternatives(Policy[AlternativesState]):
    """Wraps a policy: where it has refused something, the most probable of `count` continuations is kept.

    Its limits of retries are those of the policy; each continuation that was tried counts.
    """

    max_retries: int | None = None
    max_retries_per_place: int | None = None

    def __init__(self, policy: Policy[Any], count: int, tokenizer: Tokenizer) -> None:
        """Compare `count` continuations, two or more, from each position that `policy` rewinds to."""
        self.policy = policy
        self.count = count
        self.max_retries, self.max_retries_per_place = policy.max_retries, policy.max_retries_per_place
        self._tokenizer = tokenizer

    def __repr__(self) -> str:
        return repr(self.policy)

    @property
    def horizon(self) -> int:
        """The horizon of the policy, and the tokens of a continuation."""
        return self.policy.horizon + _MAX_TOKENS

    def initial(self, row: RowView) -> AlternativesState:
        """Return the state before the piece."""
        return AlternativesState(self.policy.initial(row))

    def advance(self, state: AlternativesState, token_id: int) -> AlternativesState:
        """Return the state after one more token."""
        inner = self.policy.advance(state.inner, token_id)
        search = state.search and state.search.advanced(self._tokenizer.token_bytes[token_id] or b"")
        return AlternativesState(inner, search)

    def branches(self, state: AlternativesState, row: RowView) -> list[Branch]:
        """Return the branches of the policy; unless it rewinds, those of the search if there is one."""
        branches = self.policy.branches(state.inner, row)
        search = state.search
        if search is None or any(branch.is_rewind for branch in branches):
            return branches
        if search.chosen is not None:
            return [Branch(sample_mask=TokenSet.of([search.chosen]))]
        back = self._back(search, row) if search.is_whole else None
        return branches if back is None else [back]

    def at_end(self, state: AlternativesState, row: RowView) -> Branch | None:
        """Rewind where the policy does not let the text end, or another continuation is to be tried or chosen."""
        branch = self.policy.at_end(state.inner, row)
        if branch is None and state.search is not None and state.search.num_tokens:
            branch = self._back(state.search, row)
        return branch

    def rewound(self, before: AlternativesState, after: AlternativesState, row: RowView) -> AlternativesState:
        """Return the state after a rewind: of the search, which has tried one more continuation, or of the policy, which begins one."""
        is_by_policy = any(branch.is_rewind for branch in self.policy.branches(before.inner, row))
        if not is_by_policy and before.search is not None and self._back(before.search, row) is not None:
            tried = (*before.search.tried, self._scored(before.search, row))
            chosen = None if self._tries_more(before.search, row) else _best(tried)
            return AlternativesState(after.inner, Search(tried, chosen=chosen))
        inner = self.policy.rewound(before.inner, after.inner, row)
        return AlternativesState(inner, after.search or (None if row.is_random else Search()))

    def give_up(self, state: AlternativesState, row: RowView, reason: str) -> AlternativesState:
        """Let the policy raise its error, or accept the text."""
        return AlternativesState(self.policy.give_up(state.inner, row, reason))

    def held_bytes(self, state: AlternativesState) -> int:
        """Return the bytes that the policy may rewind, or those of the present continuation if these are more."""
        return max(self.policy.held_bytes(state.inner), len(state.search.text) if state.search is not None else 0)

    def _back(self, search: Search, row: RowView) -> Branch | None:
        """Return the branch that tries another continuation or goes back to the best one; None if that is the present one."""
        first = len(row.token_ids) - search.num_tokens
        if first < row.first_open or row.logits_before(first) is None:
            return None
        if self._tries_more(search, row):
            return Branch(backtrack=search.num_tokens, avoid=TokenSet.of([row.token_ids[first]]))
        current = self._scored(search, row)
        is_best = _best((*search.tried, current)) == current[0]
        return None if is_best else Branch(backtrack=search.num_tokens)

    def _tries_more(self, search: Search, row: RowView) -> bool:
        """Return whether another continuation is to be tried: not after `count`, nor where only tokens that were tried are left."""
        first = row.token_ids[len(row.token_ids) - search.num_tokens]
        return len(search.tried) + 1 < self.count and all(first != token_id for token_id, _ in search.tried)

    def _scored(self, search: Search, row: RowView) -> tuple[int, float]:
        """Return the first token of the present continuation and its score: its logit, and the log-probabilities of the others."""
        first = len(row.token_ids) - search.num_tokens
        logits = row.logits_before(first)
        assert logits is not None
        token_id = row.token_ids[first]
        later = sum(row.sampling_logprob(index) for index in range(first + 1, len(row.token_ids)))
        return token_id, float(logits[token_id]) + later


def _best(tried: tuple[tuple[int, float], ...]) -> int:
    return max(tried, key=lambda continuation: continuation[1])[0]
