"""`TokenFSM`: the automaton of an expression over the tokens of one vocabulary, with lazily computed token masks.

A state is a state of the byte-level lazy DFA (`lazy_dfa.py`), a small int. Its mask is computed when it is first needed
(`mask_strategies.py`) and cached by the state's term in the vocabulary, so that all constraints share it. A mask that takes too much work
is made again with a larger bound, and at last restricted to short tokens. Checks of values are not part of the automaton (`checker.py`).
Explanations of rejected tokens (`Explanation`) and dense tables (`TokenTables`) are made from it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.automaton.lazy_dfa import DEAD, MAX_OPENED, Automaton
from fsm.caller import stacklevel_of_user
from fsm.drawing.graph import StateGraph
from fsm.drawing.picture import picture
from fsm.drawing.state_graph import explored, visible
from fsm.errors import BudgetExceeded, EmptyLanguage, TokenNotAllowed, VocabularyGap
from fsm.expression import Expression, as_bytes
from fsm.terms import node as nodes
from fsm.terms import work_budget as work
from fsm.terms.node import Kind, Node
from fsm.terms.rendering import render
from fsm.terms.work_bound import work_bound
from fsm.tokens.cache import ByteCache
from fsm.tokens.coreachable import Spelling, Steps, survivors
from fsm.tokens.mask_strategies import MaskMaker, mask_key
from fsm.tokens.token_tables import TableBuilder, TokenTables
from fsm.tokens.vocabulary import Vocabulary
from fsm.tokens.walk import walk_by_length

_BEGINNINGS = b'0"-[{tn}]a'
"""Bytes with which a value of JSON may begin or go on; where one is not allowed, a keyword forbids it."""

_MAX_GAP_STATES = 100
"""The most states that are visited to find which bytes a vocabulary lacks."""

MASK_OVERHEAD = 1_000
"""Bytes that a mask takes beside its words: the terms that are its key alone, the array object, the entry."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a token is or is not allowed in a state.

    Attributes:
        token_id, token: the id and its bytes (None for a special token).
        allowed: the answer.
        position: the index in `token` of the first byte that does not fit; None where no single byte is to blame.
        expected: the bytes that would fit there, ascending.
        text: the same as a message.
        rest: what must follow there, as a pattern, shortened: the part of the expression that does not fit.
        sources: the parts of the source that require it (JSON pointers to keywords, or a pattern); only where the text was given.
    """

    token_id: int
    token: bytes | None
    allowed: bool
    position: int | None
    expected: bytes
    text: str
    rest: str = ""
    sources: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


class TokenFSM:
    """The automaton of `expression` over the tokens of `vocabulary`, with a mask of allowed tokens for each state.

    Args:
        expression: the language.
        vocabulary: the tokens.
        max_states: most automaton states that may ever be made; see `BudgetExceeded`.
        max_mask_work: most work that one mask may take, 3 to 10 us each. None: `TokenFSM.max_mask_work`, which holds for the constraints
            of generators, too. Masks of real schemas take a third of it at most.

    Attributes:
        initial_state: the state before any token.

    Raises:
        TypeError: `expression` is not an `Expression`, or `vocabulary` is not a `Vocabulary`.
        EmptyLanguage: no text satisfies `expression`.
        VocabularyGap: the tokens cannot spell any text that does.
        BudgetExceeded: neither could be decided within the budget, or the mask of the initial state takes more than `max_mask_work`
            (it is made at once where an intersection, a negation or a lookaround begins the language).

    In a vocabulary that lacks bytes a token is allowed only where tokens after it are known to spell a text; see `coreachable.py`.
    A text that has begun can be finished: another mask that takes more than `max_mask_work` is made slowly, with four times as much
    work, in states that are forgotten again. It is the same mask. Where that is not enough, it has the tokens up to a length that was
    looked at in full, with a `RuntimeWarning`: all that it allows is correct, and the text can continue by single bytes.
    States are small ints, valid for this object and for its whole life. Several threads may use one object.
    Masks belong to the vocabulary and are shared by all constraints in which the same situation occurs.
    """

    max_gap_search = 1_000
    max_mask_work = 150_000
    max_slow_work = 4
    max_targets = 20_000

    def _repr_svg_(self) -> str | None:
        """Return a picture of some states, for notebooks; None where a mask takes more than its budget. `fsm.draw` has options."""
        try:
            return picture(self.state_graph(max_states=12, max_tokens=4))
        except BudgetExceeded:
            return None

    def __init__(
        self,
        expression: Expression,
        vocabulary: Vocabulary,
        *,
        max_states: int = 500_000,
        max_mask_work: int | None = None,
    ) -> None:
        _check(expression, vocabulary)
        self.expression = expression
        self.vocabulary = vocabulary
        if max_mask_work is not None:
            self.max_mask_work = max_mask_work
        self.automaton = Automaton(expression.node, max_states=max_states)
        self.initial_state = Automaton.initial_state
        self._keys: dict[int, Node] = {}
        self._targets: dict[tuple[int, int], int] = {}
        if self.automaton.is_empty():
            raise EmptyLanguage(
                f"no text satisfies {expression!r}. Look for parts that exclude each other, such as an intersection of "
                "disjoint languages, a minimum above a maximum, a required property that needs itself, or a lookbehind at the "
                "beginning: `regex` matches the whole text, so nothing stands behind it."
            )
        self._has_begun = False
        self._spelling: Spelling | None = None
        self._masks = vocabulary.masks
        if not vocabulary.spells_everything:
            self._spelling = Spelling(self.automaton, vocabulary.trie, self.max_gap_search)
            # Its own, since two constraints may have found out different things.
            self._masks = ByteCache(vocabulary.masks.max_bytes // 16)
            if not self._spelling.can_end(self.initial_state):
                raise self._gap(self._spelling.is_exact)
        is_recursive = not expression.node.is_regular
        self._maker = MaskMaker(self.automaton, vocabulary, self._spelling, is_recursive=is_recursive)
        if _begins_entangled(expression.node):
            self.bitmask(self.initial_state)
        self._has_begun = True
        finalize(self, vocabulary.adopt, expression.node).atexit = False

    def __repr__(self) -> str:
        return f"TokenFSM({self.expression!r}, {self.vocabulary!r})"

    def __deepcopy__(self, memo: object) -> Self:
        """Return the same: it never changes."""
        return self

    def is_accepting(self, state: int) -> bool:
        """True when the text so far belongs to the language, by the automaton alone (checks are the engine's work).

        Raises:
            UnknownState: `state` is not a state of this object.
        """
        self.automaton.check(state)
        return self.automaton.is_accepting(state)

    def bitmask(self, state: int) -> NDArray[np.int32]:
        """The tokens that keep `state` on a path to acceptance, packed; EOS ids among them when `state` accepts.

        Returns:
            int32, `(ceil(V / 32),)`, bit `t % 32` of word `t // 32` allows token t; read-only.

        Raises:
            UnknownState: `state` is not a state of this object.
            BudgetExceeded: the automaton would need more than `max_states` states, or the step over one byte more than its own bounds
                (`max_step`, `max_search`). Other states are as good as before.

        Warns:
            RuntimeWarning: the mask takes more than four times `max_mask_work`, and has short tokens only; see `TokenFSM`.

        Cost: a look-up when the situation is known; else a walk over the trie, 5 to 30 us where few bytes are live or
        inside strings, some milliseconds for wide states of other shapes (131,072 tokens).
        """
        try:
            key = self._keys.get(state)
        except TypeError:  # a list or an array of states
            key = None
        if key is None:
            key = self._make_key(state)
        mask = self._masks.get(key)
        return self._make_mask(key) if mask is None else mask

    def is_late(self, state: int) -> bool:
        """True where `bitmask` would take time, and surely holds a token that does not end the text.

        So a model may be fed before the mask is made. Raises `UnknownState` as `bitmask` does. Cost: a look-up.
        """
        key = self._keys.get(state) or self._make_key(state)
        return self.vocabulary.spells_everything and not key.nullable and key not in self._masks

    def allowed_token_ids(self, state: int) -> NDArray[np.int32]:
        """The same tokens as ids: int32, 1-D, ascending, read-only. Cost: `bitmask` and one pass over its bits."""
        ids = bitmask.to_ids(self.bitmask(state))
        ids.flags.writeable = False
        return ids

    def next_state(self, state: int, token_id: int) -> int:
        """The state after `token_id`.

        Raises:
            TokenNotAllowed: `state` does not allow it, or it is an EOS or special id, or no id of the vocabulary.
            UnknownState: `state` is not a state of this object.

        Cost: 0.3 us where it was asked before, else a look-up per byte of the token, some more where a state is new.
        """
        try:
            target = self._targets.get((state, token_id))
        except TypeError:  # lists or arrays
            target = None
        if target is not None:
            return target
        self.automaton.check(state)
        token = self._token(token_id)
        target = self.automaton.next_state(state, token) if token else DEAD
        if target == DEAD or not self._can_end(target):
            raise TokenNotAllowed(str(self.explain(state, token_id)))
        if len(self._targets) >= self.max_targets:
            self._targets = {}
        self._targets[state, token_id] = target
        return target

    def state_before(self, text: bytes) -> int:
        """The state in which `text`, and after it a text of the language, must follow; the initial one for no text.

        Raises:
            BudgetExceeded: there are `max_states` states already.

        Cost: microseconds. It is a state more for every such text, and one for each place in it that is reached.
        """
        return self.automaton.state_of(nodes.concat(nodes.literal(text), self.expression.node))

    def forced_text(self, state: int) -> bytes:
        """The bytes with which every accepted continuation begins; empty where `state` accepts or has a choice.

        They may end inside a character.
        """
        self.automaton.check(state)
        return self.automaton.forced_text(state)

    def explain(self, state: int, token_id: int, text: str | bytes | None = None) -> Explanation:
        """Explain whether `token_id` is allowed; if not, which byte does not fit, what would, and the part of the source that forbids it.

        Args:
            state: where the token would come.
            token_id: the token.
            text: what was written so far, from the initial state to `state`. States are shared between schemas and do not know it; with it
                the explanation names the keywords, patterns and names to blame.

        Raises:
            TypeError: `text` is neither `str` nor `bytes`.
            UnknownState: `state` is not a state of this object.

        Cost: microseconds; with `text` milliseconds, see `Expression.blame`.
        """
        self.automaton.check(state)
        token = self._token(token_id)
        written = None if text is None else as_bytes(text)
        if not token:
            return self._explain_special(state, token_id, written)
        for position, byte in enumerate(token):
            moves = self.automaton.moves(state)
            if byte not in moves:
                expected = bytes(sorted(moves))
                rest = render(self.automaton.nodes[state])
                sources = () if written is None else self.expression.blame(written + token[: position + 1])
                said = (
                    f"token {token_id} ({token!r}) is not allowed: expected {_show(expected)} at byte {position} of it, "
                    f"received {bytes((byte,))!r}. {_asked_by(sources)}What must follow there: {rest}. "
                    "`allowed_token_ids` lists what may come."
                )
                return Explanation(token_id, token, False, position, expected, said, rest, sources)
            state = moves[byte]
        if not self._can_end(state):
            return self._explain_gap(state, token_id, token)
        return Explanation(token_id, token, True, None, b"", f"token {token_id} ({token!r}) is allowed.")

    def wanted(self, state: int, text: str | bytes) -> str:
        """Return what must follow in `state`, for messages: as a pattern, shortened, and the parts of the source that require it.

        Args:
            state: where the text ends.
            text: what was written so far, from the initial state to `state`.

        Raises:
            TypeError: `text` is neither `str` nor `bytes`.
            UnknownState: `state` is not a state of this object.

        Cost: milliseconds, see `Expression.blame`.
        """
        self.automaton.check(state)
        sources = self._missing(state, as_bytes(text))
        return render(self.automaton.nodes[state]) + (f", asked for by {', '.join(sources)}" if sources else "")

    def state_graph(self, max_states: int, max_tokens: int) -> StateGraph:
        """Return the graph that `fsm.draw` draws; an edge names at most `max_tokens` tokens. Cost: one mask per state."""
        tokens, ends = self.vocabulary.tokens, self.vocabulary.eos_token_ids

        def labels(state: int) -> Iterator[tuple[int, list[str]]]:
            named: dict[int, list[str]] = {}
            for token_id in self.allowed_token_ids(state).tolist():
                if token_id not in ends:
                    name = visible((tokens[token_id] or b"").decode(errors="replace"))
                    named.setdefault(self.next_state(state, token_id), []).append(name)
            for target, names in named.items():
                more = len(names) - max_tokens
                yield target, [" ".join(names[:max_tokens]) + (f" +{more}" if more > 0 else "")]

        return explored(self.initial_state, labels, self.is_accepting, max_states)

    def to_tensors(self, *, max_states: int = 10_000, max_bytes: int = 256 << 20) -> TokenTables:
        """All states as arrays; for small languages that are followed without Python.

        Args:
            max_states: most states that tokens may reach; see `BudgetExceeded`.
            max_bytes: most bytes of the transitions, and of the masks.

        Returns:
            `TokenTables`, numpy arrays, read-only. They agree with `bitmask`, `next_state` and `is_accepting`.

        Raises:
            BudgetExceeded: the language needs more than `max_states` or `max_bytes`, or the automaton more than its own
                `max_states`.

        Cost: a walk of the trie per state, 0.3 to 5 ms for 131,072 tokens.
        """
        return TableBuilder(self.automaton, self.vocabulary, self._steps, max_states, max_bytes).build()

    def _steps(self, state: int) -> Steps:
        """The tokens that `state` allows, each with the state to which it leads."""
        if self._spelling is None:
            return survivors(self.automaton, self.vocabulary.trie, state)
        return self._spelling.steps(state)

    def _can_end(self, state: int) -> bool:
        """True when the tokens can spell some text from `state` on."""
        return self._spelling is None or self._spelling.can_end(state)

    def _missing(self, state: int, written: bytes) -> tuple[str, ...]:
        """The parts of the source that require more in `state`, after the text `written`."""
        moves, blame = self.automaton.moves(state), self.expression.blame
        # The end of the text says little where no value has begun; what might have begun one, or closed it, says more.
        wrong = (blame(written + bytes((byte,))) for byte in _BEGINNINGS if byte not in moves)
        return blame(written, is_whole=True) or next(filter(None, wrong), ())

    def _explain_special(self, state: int, token_id: int, written: bytes | None) -> Explanation:
        if token_id in self.vocabulary.eos_token_ids:
            accepting = self.automaton.is_accepting(state)
            expected = bytes(sorted(self.automaton.moves(state)))
            rest = render(self.automaton.nodes[state])
            sources = () if written is None or accepting else self._missing(state, written)
            text = f"token {token_id} ends the text" + (
                ", which is complete here; an end leads to no further state."
                if accepting
                else f", which still needs {_show(expected)}. {_asked_by(sources)}What must follow: {rest}."
            )
            return Explanation(token_id, None, accepting, None, expected, text, rest, sources)
        known = 0 <= token_id < len(self.vocabulary)
        what = "a special token" if known else f"no id of this vocabulary of {len(self.vocabulary)}"
        return Explanation(
            token_id, None, False, None, b"", f"token {token_id} is {what}, so it never belongs to a text."
        )

    def _explain_gap(self, state: int, token_id: int, token: bytes) -> Explanation:
        rest = render(self.automaton.nodes[state])
        said = (
            f"token {token_id} ({token!r}) is not allowed: no tokens of this vocabulary spell a text that follows it. What must follow: "
            f"{rest}. Use a tokenizer with these characters (byte-level or byte-fallback ones have all)."
        )
        return Explanation(token_id, token, False, None, bytes(sorted(self.automaton.moves(state))), said, rest)

    def _token(self, token_id: int) -> bytes | None:
        if not isinstance(token_id, int | np.integer):
            raise TypeError(f"expected one token id, an int, received {token_id!r}. Feed tokens one after the other.")
        return self.vocabulary.tokens[token_id] if 0 <= token_id < len(self.vocabulary) else None

    def _make_key(self, state: int) -> Node:
        """The term to which the mask of `state` belongs."""
        self.automaton.check(state)
        node = self.automaton.nodes[state]
        key = self._keys[state] = mask_key(node, self.vocabulary)
        return key

    def _make_mask(self, key: Node) -> NDArray[np.int32]:
        try:
            with work_bound("max_mask_work", self.max_mask_work, "the mask of one state"):
                words = self._maker.mask(key)
        except BudgetExceeded as error:
            of_work = error.limit in ("max_mask_work", "max_step", "max_search")
            if not (of_work and self._has_begun and self._spelling is None):
                raise
            words = self._words_slowly(key)
        if key.nullable:
            words |= self.vocabulary.eos_mask
        words.setflags(write=False)
        return self._masks.put(key, words, words.nbytes + MASK_OVERHEAD, self.expression.node)

    def _words_slowly(self, node: Node) -> NDArray[np.int32]:
        """The tokens of a term that takes more than `max_mask_work`, in states that are forgotten; short ones where that ends, too."""
        automaton = Automaton(node, max_states=self.automaton.max_states)
        with work_bound("max_slow_work", self.max_slow_work * self.max_mask_work, "the mask of one state, made slowly"):
            is_alive, length = walk_by_length(automaton, self.vocabulary.trie)
        if length is not None:
            warnings.warn(
                f"the mask of one state takes more than {self.max_slow_work} times `max_mask_work` ({self.max_mask_work:,}), so it allows "
                f"tokens of at most {length} bytes there: {work.HEAVY}. The text can be finished, but it is written in smaller pieces. "
                "Simplify the expression, or raise `max_mask_work`.",
                RuntimeWarning,
                stacklevel=stacklevel_of_user(),
            )
        return bitmask.pack(is_alive)

    def _gap(self, is_certain: bool) -> VocabularyGap | BudgetExceeded:
        """Why no text can be spelled, or none was found: what is wanted, within a few tokens, and no token is."""
        if not is_certain:
            return BudgetExceeded(
                f"whether tokens of this vocabulary, which lacks bytes, can spell a text was not decided within {self.max_gap_search} "
                "states. Add tokens of one byte to the vocabulary, or raise `TokenFSM.max_gap_search`.",
                "max_gap_search",
                self.max_gap_search,
            )
        queue = [self.initial_state]
        for state in queue:
            _, targets = survivors(self.automaton, self.vocabulary.trie, state)
            queue += [target for target in np.unique(targets).tolist() if target not in queue]
            if len(queue) > _MAX_GAP_STATES:
                break
        wanted = {b for state in queue for b in self.automaton.moves(state)}
        missing = bytes(b for b in sorted(wanted) if not self.vocabulary.single_bytes >> b & 1)
        return VocabularyGap(
            f"the vocabulary cannot spell any text of {self.expression!r}: no token supplies {_show(missing)} where it is needed. "
            "Use a tokenizer with these characters (byte-level or byte-fallback ones have all), or another constraint."
        )


def _check(expression: Expression, vocabulary: Vocabulary) -> None:
    if not isinstance(expression, Expression):
        raise TypeError(
            f"expected an expression, such as `fsm.regex(...)`, received {expression!r}. For one text write `fsm.choice([text])`."
        )
    if not isinstance(vocabulary, Vocabulary):
        raise TypeError(
            f"expected a `fsm.Vocabulary`, received {type(vocabulary).__name__}. Write `fsm.Vocabulary(tokens, eos_token_ids)`."
        )


def _begins_entangled(node: Node) -> bool:
    """True where conditions that hold side by side may decide the very first token, so that its mask is made at once."""
    stack, seen = [node], {node}
    while stack and len(seen) <= MAX_OPENED:
        term = stack.pop()
        new: tuple[Node, ...] = ()
        if term.kind in (Kind.INTERSECTION, Kind.COMPLEMENT, Kind.CONTINUATION):
            return True
        if term.kind is Kind.CONCAT:
            goes_on = term.args[0].nullable or term.args[0].kind is Kind.LITERAL
            new = term.args if goes_on else term.args[:1]
        elif term.kind is Kind.ALTERNATION:
            new = term.args
        elif term.kind is Kind.REPEAT:
            new = term.args[:1]
        stack += [part for part in new if part not in seen]
        seen.update(new)
    return False


def _show(data: bytes) -> str:
    """A few bytes for people."""
    if not data:
        return "the end of the text"
    shown = ", ".join(repr(bytes((b,)))[1:] for b in data[:12])
    return f"one of {shown}" + (f" and {len(data) - 12} more" if len(data) > 12 else "")


def _asked_by(sources: tuple[str, ...]) -> str:
    """Who is to blame, for people."""
    return f"This is asked for by {', '.join(sources)}. " if sources else ""
