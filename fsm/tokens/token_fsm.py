"""`TokenFSM`: the automaton of an expression over the tokens of one vocabulary, with lazily computed token masks. A state is a state of
the byte-level lazy DFA (`lazy_dfa.py`), a small int. Its mask is computed when it is first needed (`mask_strategies.py`) and cached by the
state's term in the vocabulary, so that all constraints share it. One that takes too much work is computed by a plain
walk; in the constructor, and where bytes lack (masks are not shared then), it raises `BudgetExceeded`.

Checks of values are not part of the automaton (`checker.py`). Rejections: `explanation.py`; dense tables: `token_tables.py`.

`draw`: the automaton of an expression or of a token FSM, as an SVG picture or as DOT source for Graphviz. At most `max_states` states
are drawn, breadth first; that of an expression is the DFA over characters, simplified for reading, that of a token FSM is drawn as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal, Protocol, Self
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.automaton.lazy_dfa import DEAD, MAX_FORCED, MAX_OPENED, Automaton
from fsm.drawing import StateGraph, explored, picture, visible
from fsm.errors import BudgetExceeded, EmptyLanguage, TokenNotAllowed
from fsm.expression import Expression, Text, as_bytes
from fsm.limits import work_bound
from fsm.terms import node as nodes
from fsm.terms.node import Kind, Node
from fsm.tokens.cache import ByteCache
from fsm.tokens.coreachable import Spelling, Steps, survivors
from fsm.tokens.explanation import Explanation, explain, explain_special, gap_error, special_gap, wanted
from fsm.tokens.leaving import Leaving, leaving
from fsm.tokens.mask_strategies import MaskMaker, mask_key
from fsm.tokens.token_tables import TableBuilder, TokenTables
from fsm.tokens.vocabulary import Vocabulary
from fsm.tokens.walk import walk_wide

_ENTANGLED = frozenset({Kind.INTERSECTION, Kind.COMPLEMENT, Kind.CONTINUATION})


class TokenFSM:
    """The automaton of `expression` over the tokens of `vocabulary`, with a mask of allowed tokens for each state.

    Args:
        expression: the language.
        vocabulary: the tokens.
        max_states: most automaton states that may ever be made; see `BudgetExceeded`.
        max_mask_work: most work that one mask may take, in steps of 3 to 10 us. None: `TokenFSM.max_mask_work`, which also bounds the
            constraints of generators. Masks of real schemas take a third of it at most.

    Attributes:
        initial_state: the state before any token.

    Raises:
        TypeError: `expression` is not an `Expression`, or `vocabulary` is not a `Vocabulary`.
        EmptyLanguage: no text satisfies `expression`.
        VocabularyGap: the tokens cannot spell any text that does, or the vocabulary has not all special tokens of `expression`.
        BudgetExceeded: neither could be decided within the budget, or the mask of the initial state takes more than `max_mask_work`
            (it is computed in the constructor where an intersection, a negation or a lookaround begins the language).

    In a vocabulary that lacks bytes a token is allowed only where tokens after it are known to spell a text; see `coreachable.py`.
    A text that has begun can be finished: any other mask that takes more than `max_mask_work` is computed by a plain walk with an automaton
    of its own, without that bound. It is the same mask, and takes one step at most for each node of the trie.
    States are small ints, valid for the life of this object. Several threads may use one object.
    Masks are cached in the vocabulary and shared by all constraints with equal terms.
    """

    max_gap_search = 1_000
    max_mask_work = 150_000
    max_targets = 20_000

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
        missing = expression.specials - vocabulary.special_ids.keys()
        if missing:
            raise special_gap(expression, vocabulary, min(missing))
        self._has_begun = False
        self._spelling: Spelling | None = None
        self._masks = vocabulary.masks
        if not vocabulary.spells_everything:
            self._spelling = Spelling(self.automaton, vocabulary.trie, self.max_gap_search)
            # Not shared, since the searches of two constraints may have had different results.
            self._masks = ByteCache(vocabulary.masks.max_bytes // 16)
            if not self._spelling.can_end(self.initial_state):
                raise gap_error(expression, self.automaton, vocabulary, self._spelling)
        self._leaving: ByteCache[Node, Leaving] = ByteCache(vocabulary.masks.max_bytes // 16)
        self._maker = MaskMaker(self.automaton, vocabulary, self._spelling)
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
        """True when the text so far belongs to the language, by the automaton alone (the engine runs checks).

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
            BudgetExceeded: the automaton would need more than `max_states` states, or the step over one byte more than `max_step`.
                Other states stay valid.

        Cost: a look-up when the mask is cached; else a walk of the trie, 5 to 30 us where few bytes are live or
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

    def leaving(self, state: int) -> Leaving:
        """The tokens that `state` does not allow, though bytes at their beginning, or none, complete a text; no special tokens.

        In a vocabulary that lacks bytes only those before which the text is complete, as tokens may not spell another beginning.

        Raises:
            UnknownState: `state` is not a state of this object.
            BudgetExceeded: as `bitmask` does.

        Cost: a look-up where they are cached, else a walk of the trie, 3 to 25 ms (131,072 tokens).
        """
        key = self._keys.get(state) or self._make_key(state)
        found = self._leaving.get(key)
        if found is None:
            others = self.vocabulary.text_mask & ~self.bitmask(state)
            found = leaving(self.automaton, self.vocabulary.trie, self.automaton.state_of(key), others)
            if not self.vocabulary.spells_everything:
                found = found.before_tokens()
            self._leaving.put(key, found, found.nbytes)
        return found

    def open_bitmask(self, state: int) -> NDArray[np.int32]:
        """The tokens of `bitmask` and those of `leaving`, packed: int32, `(ceil(V / 32),)`, read-only.

        Cost: that of both; where `state` accepts and the vocabulary has all bytes, that of `bitmask`, as every token with text is allowed.
        """
        words, vocabulary = self.bitmask(state), self.vocabulary
        if not self.is_accepting(state) or not vocabulary.spells_everything:
            words = words | bitmask.from_ids(self.leaving(state).token_ids, vocabulary.num_words)
        elif not (words & ~vocabulary.ending_mask).any():
            return vocabulary.ending_mask
        else:
            words = words | vocabulary.ending_mask  # it has special tokens
        words.setflags(write=False)
        return words

    def is_late(self, state: int) -> bool:
        """True if the mask is not cached, and certainly has a token that does not end the text.

        So a model may be fed before the mask is computed. Raises `UnknownState` as `bitmask` does. Cost: a look-up.
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

        Cost: 0.3 us where it is cached, else a look-up per byte of the token, more where a state is new.
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
        if target == DEAD or (self._spelling is not None and not self._spelling.can_end(target)):
            raise TokenNotAllowed(str(self.explain(state, token_id)))
        if len(self._targets) >= self.max_targets:
            self._targets = {}
        self._targets[state, token_id] = target
        return target

    def state_before(self, text: bytes) -> int:
        """The state in which `text`, and after it a text of the language, must follow; the initial one for no text.

        Raises:
            BudgetExceeded: there are `max_states` states already.

        Cost: microseconds, one state more for every such text, and one for each position in it that is reached.
        """
        return self.automaton.state_of(nodes.concat(nodes.literal(text), self.expression.node))

    def forced_text(self, state: int, max_bytes: int = MAX_FORCED) -> bytes:
        """The first `max_bytes` of those with which every accepted continuation begins; empty if `state` accepts or has a choice.

        They may end inside a character.
        """
        self.automaton.check(state)
        return self.automaton.forced_text(state, max_bytes)

    def has_one_text(self, state: int) -> bool:
        """True if the text can be completed in one way only, which is to append `forced_text`; in a text of 65,536 bytes at most."""
        self.automaton.check(state)
        _, target = self.automaton.forced(state)
        return self.automaton.is_accepting(target) and not self.automaton.moves(target)

    def explain(self, state: int, token_id: int, text: Text | None = None) -> Explanation:
        """Explain whether `token_id` is allowed; if not, which byte does not fit, what would, and the part of the source that forbids it.

        Args:
            state: the state before the token.
            token_id: the token.
            text: what was written so far, from the initial state to `state`, which does not determine it; with it the explanation names
                the keywords, patterns and names to blame.

        Raises:
            TypeError: `text` is not a `fsm.expression.Text`.
            UnknownState: `state` is not a state of this object.

        Cost: microseconds; with `text` milliseconds, see `Expression.blame`.
        """
        self.automaton.check(state)
        token = self._token(token_id)
        written = None if text is None else as_bytes(text)
        if not token:
            return explain_special(self.expression, self.automaton, self.vocabulary, state, token_id, written)
        return explain(self.expression, self.automaton, state, token_id, token, written, self._can_end)

    def wanted(self, state: int, text: Text) -> str:
        """Return what must follow in `state`, for messages: as a pattern, shortened, and the parts of the source that require it.

        Args:
            state: where the text ends.
            text: what was written so far, from the initial state to `state`.

        Raises:
            TypeError: `text` is not a `fsm.expression.Text`.
            UnknownState: `state` is not a state of this object.

        Cost: milliseconds, see `Expression.blame`.
        """
        self.automaton.check(state)
        return wanted(self.expression, self.automaton, state, as_bytes(text))

    def state_graph(self, max_states: int, max_tokens: int) -> StateGraph:
        """Return the graph that `fsm.draw` draws; an edge names at most `max_tokens` tokens. Cost: one mask per state."""
        vocabulary, ends = self.vocabulary, self.vocabulary.eos_token_ids

        def labels(state: int) -> Iterator[tuple[int, list[str]]]:
            named: dict[int, list[str]] = {}
            for token_id in self.allowed_token_ids(state).tolist():
                if token_id not in ends:
                    name = vocabulary.special_tokens.get(token_id) or vocabulary.spelled[token_id].decode(
                        errors="replace"
                    )
                    named.setdefault(self.next_state(state, token_id), []).append(visible(name))
            for target, names in named.items():
                more = len(names) - max_tokens
                yield target, [" ".join(names[:max_tokens]) + (f" +{more}" if more > 0 else "")]

        return explored(self.initial_state, labels, self.is_accepting, max_states)

    def _repr_svg_(self) -> str | None:
        """Return a picture of some states, for notebooks; None if a mask takes more than its budget. `fsm.draw` has options."""
        try:
            return picture(self.state_graph(max_states=12, max_tokens=4))
        except BudgetExceeded:
            return None

    def to_tensors(self, *, max_states: int = 10_000, max_bytes: int = 256 << 20) -> TokenTables:
        """Return all states as arrays, for decoding loops without Python; only for small languages.

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

    def _token(self, token_id: int) -> bytes | None:
        if type(token_id) is not int and not isinstance(token_id, int | np.integer):
            raise TypeError(f"expected one token id, an int, received {token_id!r}. Feed tokens one after the other.")
        return self.vocabulary.spelled[token_id] if 0 <= token_id < len(self.vocabulary.spelled) else None

    def _make_key(self, state: int) -> Node:
        """Compute the term under which the mask of `state` is cached."""
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
        return self._maker.keep(self._masks, key, words)

    def _words_slowly(self, node: Node) -> NDArray[np.int32]:
        """The mask of a term by the plain walk, in an automaton of its own: one step at most for each node of the trie."""
        automaton = Automaton(node, max_states=self.automaton.max_states)
        return bitmask.pack(walk_wide(automaton, self.vocabulary.trie, automaton.initial_state))


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
    """True if an intersection, a negation or a lookaround may restrict the first token, so that its mask may take much work."""
    return any(part.kind in _ENTANGLED for part in islice(nodes.reached(node, _begins), MAX_OPENED))


def _begins(term: Node) -> tuple[Node, ...]:
    """The parts of a term with which its texts begin, the second one of a concatenation where the first is short."""
    if term.kind is Kind.CONCAT:
        return term.args if term.args[0].nullable or term.args[0].kind is Kind.LITERAL else term.args[:1]
    return term.args if term.kind is Kind.ALTERNATION else term.args[:1] if term.kind is Kind.REPEAT else ()


class Drawable(Protocol):
    """What can be drawn: an `Expression`, or a `TokenFSM`."""

    def state_graph(self, max_states: int, max_tokens: int) -> StateGraph:
        """The graph of the first states."""


def draw(
    language: Drawable,
    *,
    format: Literal["svg", "dot", "table"] = "svg",
    max_states: int = 40,
    max_tokens: int = 4,
) -> str:
    """Return a drawing of the DFA over characters of an expression, or of a token FSM.

    The DFA of an expression is simplified for reading: a chain of states without a choice is one edge, `␣` is a space and `␣?` an
    optional one, a count above 8 is drawn as a loop. A token FSM is drawn as it is.

    Args:
        language: the expression or the token FSM.
        format: `"svg"` for a picture, `"dot"` for the same graph in the DOT language of Graphviz, `"table"` for a line of text for each
            edge, which is easier to read where there are many.
        max_states: the most states that are drawn; edges that lead beyond them end in `...`.
        max_tokens: the most tokens that an edge of a token FSM names.

    Raises:
        BudgetExceeded: see `Automaton`.
        ValueError: `format` is none of them.

    Cost: the states that are drawn and those that are simplified away; for a token FSM also one mask per state.
    """
    writers: dict[str, Callable[[StateGraph], str]]
    writers = {"svg": picture, "dot": StateGraph.to_dot, "table": StateGraph.to_table}
    if format not in writers:
        raise ValueError(f"expected `format` 'svg', 'dot' or 'table', received {format!r}.")
    return writers[format](language.state_graph(max_states, max_tokens))
