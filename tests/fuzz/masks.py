"""Masks of random languages (`languages.py`) against the plain loop over all tokens, on random walks that end in a valid text.

The plain mask follows a tree of dicts and the automaton's `moves`, and shares no code with the strategies. In each state also every
strategy that recognises the term makes the plain mask; the masks of a walk are made again in reverse, after those of the walk before it,
by what the vocabulary has kept.
"""

from __future__ import annotations

import itertools
import math
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from random import Random
from time import monotonic, process_time
from typing import Any
from unittest.mock import patch

from fsm import BudgetExceeded, Expression, FSMError, TokenFSM, TokenNotAllowed, Vocabulary
from fsm.automaton.lazy_dfa import Automaton, shortest_text
from fsm.bitmask import to_ids
from fsm.limits import work_bound
from fsm.terms import node as nodes
from fsm.terms.node import Kind
from fsm.tokens import mask_strategies, walk
from fsm.tokens.mask_strategies import BELOW, STRATEGIES, MaskMaker
from fsm.trie import Trie
from tests.fuzz.languages import build, draw, is_valid, smaller

MAX_STATES = 3_000  # of the automaton of the plain loop; languages with more are left out
MAX_SECONDS = 1.0  # of processor time for one language; then its walk ends
STEPS = 30
_PIECES = ["a", "b", "ab", "z", "yes", "no", " ", "  ", "é", "1", "12", ".", ",", '"', '":', '": ', '{"', '", "', '"}', "]", "[", "\n",
           "x-", "_", "if", "==", "\\", "-", "null", "\x00"]  # fmt: skip
_SETTINGS: list[list[tuple[Any, str, Any]]] = [
    [],
    [],
    [(Vocabulary, "walks_before_a_loop", 0), (Vocabulary, "sweeps_before_exits", 0)],
    [(mask_strategies, "_is_narrow", lambda maker, state: False), (walk, "MAX_TAIL_NODES", 0)],
]
"""What is set for a walk, so that each strategy is the one that is used now and then."""


class WrongMask(AssertionError):
    """A mask, or what follows from one, is wrong."""


class Tree:
    """The tokens below one place: those that end there, and trees by the next byte."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self.branches: dict[int, Tree] = {}

    def at(self, text: bytes) -> Tree:
        """The tree after a text, made if need be."""
        tree = self
        for byte in text:
            tree = tree.branches.setdefault(byte, Tree())
        return tree


def plain(automaton: Automaton, state: int, tree: Tree) -> list[int]:
    """The tokens after which `state` is alive: one look-up in `moves` for a byte."""
    found, stack = list[int](), [(state, tree)]
    while stack:
        here, below = stack.pop()
        moves = automaton.moves(here)
        for byte in moves.keys() & below.branches.keys():
            found += below.branches[byte].ends
            stack.append((moves[byte], below.branches[byte]))
    return sorted(found)


@cache
def vocabulary(name: str) -> tuple[Vocabulary, Tree]:
    """One of three vocabularies, which all languages share, and the tree of its tokens."""
    tokens: list[bytes | None] = [bytes((byte,)) for byte in range(256)]
    eos = [256]
    if name == "mixed":
        random = Random(0)
        texts = {"".join(random.choices(_PIECES, k=random.randint(1, 5))).encode() for _ in range(400)}
        tokens += [None, *sorted(text[: random.randint(1, 9)] for text in texts)]
    elif name == "tekken":
        from tests.vocabularies import tekken_token_bytes

        tokens, eos = tekken_token_bytes()
    else:
        tokens.append(None)
    tree = Tree()
    for token_id, token in enumerate(tokens):
        if token:
            tree.at(token).ends.append(token_id)
    return Vocabulary(tokens, eos), tree


@dataclass
class Counts:
    """What was compared, and what was not: refused languages, those with many states, ends that no search proved."""

    of: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {what}" for what, count in sorted(self.of.items()))


@dataclass(frozen=True)
class Example:
    """A language, a vocabulary, and the seed of a walk."""

    kind: str
    source: Any
    vocabulary: str
    seed: int


def example(seed: int, *, tekken: float = 0.05) -> Example:
    """The example of a seed; a part of them is for the large vocabulary."""
    random = Random(seed)
    kind, source = draw(random)
    return Example(kind, source, "tekken" if random.random() < tekken else random.choice(["bytes", "mixed"]), seed)


Made = tuple[TokenFSM, dict[int, bytes]]
"""A token FSM, and the masks that it made."""


def check(one: Example, counts: Counts, before: Made | None = None) -> Made | None:
    """Compare the masks of an example on a walk; `before` are those of another, made again after it.

    Raises:
        WrongMask: a mask is not the plain one, a token is wrongly refused or allowed, or a walk ends in no valid text.
        BudgetExceeded: a mask took too much work.
    """
    random, start = Random(one.seed), process_time()
    tokens, tree = vocabulary(one.vocabulary)
    if random.random() < 0.05:
        tokens.masks.clear()
    try:
        expression = build(one.kind, one.source)
        token_fsm = TokenFSM(expression, tokens)
    except FSMError:
        counts.of["refused"] += 1
        return None
    counts.of["languages"] += 1
    walk_ = _Walk(token_fsm, tree, random, counts)
    is_large = one.vocabulary == "tekken"
    with _settings(random.choice(_SETTINGS)):
        for step in range(STEPS):
            if process_time() - start > MAX_SECONDS * (3 if is_large else 1) or (is_large and step > 12):
                counts.of["walks cut"] += 1
                break
            with_strategies = step < 6 or not random.randrange(6)
            going = walk_.allowed() if is_large and step % 4 else walk_.compare(with_strategies=with_strategies)
            if going is None:
                return None
            if not going:
                break
            if not walk_.take(going):
                return None
        _ends_well(one, expression, walk_)
        made = token_fsm, walk_.masks
        for again in (made, before):
            if again is not None:
                again[0].vocabulary.masks.clear()
                _same_again(*again, counts)
    return made


@contextmanager
def _settings(values: list[tuple[Any, str, Any]]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner, name, value in values:
            stack.enter_context(patch.object(owner, name, value))
        yield


def _same_again(token_fsm: TokenFSM, masks: dict[int, bytes], counts: Counts) -> None:
    for state, words in reversed(masks.items()):
        counts.of["masks made again"] += 1
        if token_fsm.bitmask(state).tobytes() != words:
            raise WrongMask(f"the mask of state {state} is another one when it is made again")


class _Walk:
    """A walk through a language, beside an automaton of its own; compares the masks of its states."""

    def __init__(self, token_fsm: TokenFSM, tree: Tree, random: Random, counts: Counts) -> None:
        self.fsm, self._tree, self._random, self._counts = token_fsm, tree, random, counts
        self._vocabulary = token_fsm.vocabulary
        self._maker = MaskMaker(token_fsm.automaton, self._vocabulary)
        self._oracle = Automaton(token_fsm.expression.node, max_states=MAX_STATES)
        self.state, self.text, self._at = token_fsm.initial_state, b"", Automaton.initial_state
        self.masks: dict[int, bytes] = {}

    def compare(self, *, with_strategies: bool) -> list[int] | None:
        """The tokens that go on, where the mask is the plain one; None where the automaton has too many states."""
        try:
            expected = plain(self._oracle, self._at, self._tree)
        except BudgetExceeded:
            self._counts.of["with too many states"] += 1
            return None
        received = self._mask()
        ends = list(self._vocabulary.eos_token_ids) if self._oracle.is_accepting(self._at) else []
        self._same("the mask", sorted({*expected, *ends}), received)
        if with_strategies:
            self._compare_strategies(expected)
        self._follow(expected)
        return expected

    def allowed(self) -> list[int]:
        """The tokens that go on, by the mask alone."""
        return [token_id for token_id in self._mask() if self._vocabulary.tokens[token_id]]

    def _mask(self) -> list[int]:
        """The ids of the mask, which is kept to be made again."""
        words = self.fsm.bitmask(self.state)
        self.masks[self.state] = words.tobytes()
        return to_ids(words).tolist()

    def _same(self, what: str, expected: list[int], received: list[int]) -> None:
        self._counts.of["masks compared"] += 1
        self._counts.of["tokens compared"] += len(self._vocabulary)
        if expected != received:
            names = self._vocabulary.tokens
            more, less = ([names[t] for t in sorted(found)[:8]] for found in (set(received) - {*expected}, set(expected) - {*received}))
            raise WrongMask(f"{what} after {self.text!r} wrongly allows {more}, and lacks {less} ({len(expected)} are right)")

    def _compare_strategies(self, expected: list[int]) -> None:
        key = mask_strategies.mask_key(self.fsm.automaton.nodes[self.state], self._vocabulary)
        for strategy in STRATEGIES:
            self._compare_strategy(strategy, key, Trie.root, strategy.__name__, expected)
        token = self._vocabulary.tokens[self._random.randrange(len(self._vocabulary))] or b"a"
        before = token[: self._random.randint(1, len(token))]
        place = self._vocabulary.trie.follow(Trie.root, before)[1]
        try:
            below = plain(self._oracle, self._at, self._tree.at(before))
        except BudgetExceeded:
            self._counts.of["with too many states"] += 1
            return
        for strategy in BELOW:
            self._compare_strategy(strategy, key, place, f"{strategy.__name__} below {before!r}", below)

    def _compare_strategy(self, strategy: Any, key: nodes.Node, place: int, what: str, expected: list[int]) -> None:
        try:
            with work_bound("max_mask_work", self.fsm.max_mask_work, "the mask of one state"):
                words = strategy(self._maker, key, place)
        except BudgetExceeded:  # the token FSM walks plainly then
            self._counts.of["strategies over their budget"] += 1
            return
        if words is not None:
            self._same(what, expected, to_ids(words).tolist())

    def _follow(self, expected: list[int]) -> None:
        """Some allowed tokens are fed, and some others refused."""
        allowed = set(expected)
        for token_id in self._random.sample(expected, min(len(expected), 40)):
            self._counts.of["tokens fed"] += 1
            try:
                self.fsm.next_state(self.state, token_id)
            except TokenNotAllowed:
                raise WrongMask(f"after {self.text!r} the token {self._vocabulary.tokens[token_id]!r} is allowed and refused") from None
        for token_id in {*self._random.choices(range(len(self._vocabulary)), k=2)} - allowed:
            try:
                self.fsm.next_state(self.state, token_id)
            except TokenNotAllowed:
                continue
            raise WrongMask(f"after {self.text!r} the token {self._vocabulary.tokens[token_id]!r} is not allowed and fed")

    def take(self, going: list[int]) -> bool:
        """Feed one of the tokens, mostly one of ASCII; False where the automaton of the plain loop has too many states."""
        tokens = self._vocabulary.tokens
        some = self._random.choices(going, k=8)
        chosen = next((t for t in some if max(tokens[t] or b"") < 128), some[0])
        self.state = self.fsm.next_state(self.state, chosen)
        self.text += tokens[chosen] or b""
        try:
            for byte in tokens[chosen] or b"":
                self._at = self._oracle.moves(self._at)[byte]
        except BudgetExceeded:
            self._counts.of["with too many states"] += 1
            return False
        return True


def _ends_well(one: Example, expression: Expression, walked: _Walk) -> None:
    """Complete the text of a walk on a shortest path; it must be valid, by our own and by another library's reading."""
    counts = walked._counts
    try:
        rest = shortest_text(walked.fsm.automaton.nodes[walked.state], max_states=MAX_STATES // 2)
    except BudgetExceeded:
        rest = None
    if rest is None:
        if _is_dead(walked.fsm.automaton.nodes[walked.state]):
            raise WrongMask(f"the walk ends in {walked.text!r}, after which no text follows")
        counts.of["ends not found"] += 1
        return
    text = walked.text + rest
    counts.of["texts ended"] += 1
    has_checks = any(part.kind is Kind.CHECK for part in nodes.all_parts(expression.node))
    if not has_checks and not expression.accepts(text):
        raise WrongMask(f"the walk ends in {text!r}, which is not accepted")
    if not has_checks and is_valid(one.kind, one.source, text.decode()) is False:
        raise WrongMask(f"the walk ends in {text!r}, which another library refuses")


def _is_dead(term: nodes.Node) -> bool:
    """True where no text of a term is found in all of its states, of which there are few."""
    automaton = Automaton(term, max_states=MAX_STATES)
    try:
        states = nodes.reached(automaton.initial_state, lambda state: automaton.moves(state).values())
        return not any(map(automaton.is_accepting, states))
    except BudgetExceeded:
        return False


def failure(one: Example, counts: Counts, before: Made | None = None) -> tuple[str, str, Made | None]:
    """Check one example: what failed (empty: nothing), the message, and what was made."""
    try:
        return "", "", check(one, counts, before)
    except WrongMask as error:
        return "wrong", str(error), None
    except BudgetExceeded as error:
        return "budget", str(error), None
    except Exception as error:
        places = [f"{place.name}:{place.lineno}" for place in traceback.extract_tb(error.__traceback__)]
        return type(error).__name__, f"{error} {' < '.join(reversed(places))}"[:600], None


def shrunk(one: Example, kind: str, seconds: float = 20) -> tuple[Example, str]:
    """A smaller example that fails in the same way, with no mask made before it; the same one where none does."""
    message, limit, is_new = "", monotonic() + seconds, True
    vocabulary(one.vocabulary)[0].masks.clear()
    while is_new:
        is_new = False
        for less in smaller(one.source):
            other = Example(one.kind, less, one.vocabulary, one.seed)
            vocabulary(one.vocabulary)[0].masks.clear()
            found, text, _ = failure(other, Counts())
            if found == kind:
                one, message, is_new = other, text, True
                break
            if monotonic() > limit:
                break
    return one, message


def run(
    seed: int, seconds: float, counts: Counts, *, count: int | None = None, tekken: float = 0.05, progress: float = math.inf
) -> Iterator[str]:
    """Check the examples of seed, seed + 1, ... for a time; yield each different finding with a smaller example.

    Every `progress` seconds the counts are printed to stderr.
    """
    end, told, known = monotonic() + seconds, monotonic(), set[str]()
    before: dict[str, Made | None] = {}
    for number in itertools.count(seed):
        if monotonic() > end or number - seed == count:
            return
        if monotonic() - told > progress:
            told = monotonic()
            print(f"seed {number}: {counts}", file=sys.stderr, flush=True)
        one = example(number, tekken=tekken)
        kind, message, before[one.vocabulary] = failure(one, counts, before.get(one.vocabulary))
        if not kind:
            continue
        counts.of[f"findings: {kind}"] += 1
        if f"{kind} {message[:25]}" in known:
            continue
        known.add(f"{kind} {message[:25]}")
        small, why = shrunk(one, kind)
        yield f"seed {number}: {kind}: {message}\n  {one}\n  smaller: {small if why else 'none fails by itself'}\n  {why}"
