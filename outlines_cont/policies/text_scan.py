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

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self
from zlib import crc32

from outlines_cont.interfaces import LanguageModel, Tokenizer
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
    # identifies the match: the rule, the length of the text before that token and a digest of it, the offset of its first character in the
    # token, and, if that is not 0, the number of its first symbol among those of the character
    key: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ScanState:
    """The state of a search after some tokens, immutable, linked to the state one token before."""

    search: PatternSearch  # the search for patterns
    before: ScanState | None = None  # the state one token before; None at the beginning of the piece
    # the length of the piece
    num_tokens: int = 0
    num_bytes: int = 0
    digest: int = 0  # CRC-32 of its bytes
    node: int = 0  # in the trie of phrases
    # for each symbol that leads there the offset of its character, and its number among the symbols of that
    path: tuple[tuple[int, int], ...] = ()
    read: Symbols = BEGINNING  # the last symbols, and the state of the decoder
    matches: tuple[Match, ...] = ()  # those that end in the last token, ordered by their beginning
    num_passed: int = 0  # the matches of this many further tokens are ignored
    refused: int | None = None  # the index of the rule that was refused here last
    num_healed: int = 0  # how many of the next bytes respell the prompt, see `RowView.healed`


@dataclass(frozen=True, eq=False)
class TextScan:
    """A search for phrases and patterns in the tokens of one tokenizer, which is None in a policy that has no model yet."""

    reader: SymbolReader  # converts bytes to the symbols that are compared
    trie: PhraseTrie[str]  # the phrases as such symbols
    search: PatternSearch  # the patterns
    tokenizer: Any = None  # whose tokens are read
    _read: dict[tuple[int, bool], Symbols] = field(default_factory=dict, init=False, repr=False)

    @property
    def most(self) -> int:
        """The most tokens from the beginning of a match to where it is found, if each has a character or more, as nearly all have."""
        return 1 + max((*self.trie.length, *(pattern.most for pattern in self.search.patterns.values())), default=0)

    def initial(self, row: RowView, *, include_prompt: bool) -> ScanState:
        """Return the state before the generated span; with `include_prompt`, after reading the end of the text before it."""
        state = ScanState(search=self.search, num_healed=len(row.healed))
        if not include_prompt:
            return state
        num_bytes = 8 * self.most + 65  # a character has up to 4, and as many again are before it
        text = text_before(row, self.tokenizer, num_bytes)
        state = self._pushed(state, text, self.reader.read(text, BEGINNING))
        # Offsets count from the piece, so those of matches that begin before it are negative.
        path = tuple((place - state.num_bytes, number) for place, number in state.path)
        search = state.search.moved(state.num_bytes)
        return ScanState(search, node=state.node, path=path, read=state.read, num_healed=len(row.healed))

    def push(self, state: ScanState, token_id: int) -> ScanState:
        """Return the state after one more token. Cost: 1 us and 0.1 us per character, for any number of phrases."""
        data = self.tokenizer.token_bytes[token_id] or b""
        if state.num_healed:
            text = data[state.num_healed :]
            after = self._pushed(state, text, self.reader.read(text, state.read))
            return replace(after, num_healed=max(state.num_healed - len(data), 0))
        return self._pushed(state, data, self._symbols(token_id, data, state))

    def _pushed(self, state: ScanState, data: bytes, read: Symbols) -> ScanState:
        """Return the state after a token that has these bytes and symbols."""
        node, step, ends = state.node, self.trie.step, self.trie.ends
        ended: list[tuple[int, int]] = []
        for number, symbol in enumerate(read.symbols, len(state.path) + 1):
            node = step(node, symbol)
            if node and ends(node):
                ended += [(rule, number - self.trie.length[rule]) for rule in ends(node)]
        path: tuple[tuple[int, int], ...] = ()
        found: list[Found] = []
        if node or ended:
            path = (*state.path, *((state.num_bytes + offset, number) for offset, number in read.places))
            found = [Found(rule, *path[number]) for rule, number in ended]
            path = path[len(path) - self.trie.depth[node] :]
        search, of_patterns = state.search.push(read.characters, state.num_bytes)
        found += of_patterns
        length, digest = state.num_bytes + len(data), crc32(data, state.digest)
        after = ScanState(
            search, state, state.num_tokens + 1, length, digest, node, path, read, num_passed=state.num_passed
        )
        if not found:
            return after
        if state.num_passed:
            return replace(after, num_passed=state.num_passed - 1)
        return replace(after, matches=_matches(after, found))

    def at_end(self, state: ScanState) -> tuple[Match, ...]:
        """Return the further matches if the text ends here, such as of whole words."""
        if state.num_passed:
            return ()
        found = state.search.at_end()
        if state.read.in_word:
            path = *state.path, (state.num_bytes, 0)
            ends = self.trie.ends(self.trie.step(state.node, WORD_ENDS))
            found += [Found(rule, *path[len(path) - self.trie.length[rule]]) for rule in ends]
        return _matches(state, found)

    def held_bytes(self, state: ScanState) -> int:
        """Return how many trailing bytes are in a match, or may still become one, counted from the beginning of a token."""
        if not (state.path or state.read.held or state.search.threads or state.matches):
            return 0
        starts = [place for place, _ in state.path[:1]] + [thread.start for thread in state.search.threads]
        if state.read.held:  # the character may begin a match
            starts += [state.num_bytes - len(state.read.held)]
        befores = [_before_byte(state, min(starts))] if starts else []
        befores += [state_at(state, match.token) for match in state.matches]
        return state.num_bytes - min(before.num_bytes for before in befores)

    def _symbols(self, token_id: int, data: bytes, state: ScanState) -> Symbols:
        if state.read.held:
            return self.reader.read(data, state.read)
        key = token_id, state.read.in_word
        known = self._read.get(key)
        if known is None:
            known = self._read[key] = self.reader.read(data, state.read)
        return known


@dataclass(frozen=True, eq=False, kw_only=True)
class ScanPolicy(Policy[ScanState]):
    """Base of policies that search the generated tokens, by `scan`."""

    scan: TextScan

    def for_model(self, model: LanguageModel) -> Policy[Any]:
        """Return the policy over the tokens of a model."""
        return self.over(model)

    def over(self, model: LanguageModel) -> Self:
        """Return the policy itself over the tokens of a model."""
        return replace(self, scan=replace(self.scan, tokenizer=model.tokenizer))

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
        if self.scan.tokenizer is None:
            raise TypeError(
                "expected a policy for a model: call `for_model(model)`, as generators do with `policies=[...]`"
            )
        return self.scan


def _matches(state: ScanState, found: Sequence[Found]) -> tuple[Match, ...]:
    """Return the matches in the text of a state, ordered by the tokens that they begin in."""
    matches = []
    for one in found:
        before = _before_byte(state, one.start)
        key = (
            one.rule,
            before.num_bytes,
            before.digest,
            one.start - before.num_bytes,
            *([one.symbol] if one.symbol else ()),
        )
        matches.append(Match(one.rule, before.num_tokens, key))
    return tuple(sorted(matches, key=lambda match: match.token))


def _before_byte(state: ScanState, offset: int) -> ScanState:
    """Return the state before the token with a byte; the initial one, if it is before the piece."""
    before = state.before
    while before is not None and before.num_bytes > offset and before.before is not None:
        before = before.before
    return before or state


def state_at(state: ScanState, num_tokens: int) -> ScanState:
    """Return the state after the first `num_tokens` tokens of the generated span; the state itself if there are fewer."""
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
    """The state of the inner policy, and the search; None if no continuations are compared."""

    inner: Any
    search: Search | None = None


class Alternatives(Policy[AlternativesState]):
    """Wraps a policy: if it has refused something, the most probable of `count` continuations is kept.

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
        """Return whether another continuation is to be tried: not after `count`, nor if only tokens that were tried are left."""
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
