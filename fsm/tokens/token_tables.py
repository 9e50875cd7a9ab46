"""`TokenTables`: a small token automaton as dense arrays, for decoding loops that run without Python, on a GPU for example. All reachable
states are enumerated breadth first (`TableBuilder`). Tokens with equal transitions in every state are one class (by partition refinement)
and one column of the transition table; equal masks are stored once. More states or bytes than the caller's bounds raise `BudgetExceeded`.
Acceptance is that of the automaton: checks of values are not in the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fsm import bitmask
from fsm.automaton.lazy_dfa import DEAD, Automaton
from fsm.errors import BudgetExceeded
from fsm.tokens.coreachable import Steps
from fsm.tokens.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class TokenTables:
    """All states of a token automaton. S states, C classes of tokens, V token ids, M distinct masks, W = ceil(V / 32) words.

    State 0 is the dead state: tokens that are not allowed lead to it, and none leads out of it, so that indices are in range for any
    token. States are numbered by their distance from the initial one, not as in the `TokenFSM`.

    Attributes:
        transitions: (S, C) int32, the state after a token of a class; 0 if it is not allowed. EOS ids lead to 0, too.
        token_class: (V,) int32, 0 <= class < C.
        is_accepting: (S,) bool, True if the text so far belongs to the language, by the automaton alone.
        masks: (M, W) int32, bit `t % 32` of word `t // 32` allows token t, EOS ids where the state accepts.
        mask_index: (S,) int32, the row of `masks` that belongs to a state; that of state 0 allows nothing.
        states: (S,) int32, the same states as numbers of the `TokenFSM`; 0 for state 0.
    """

    initial_state: ClassVar[int] = 1

    transitions: NDArray[np.int32]
    token_class: NDArray[np.int32]
    is_accepting: NDArray[np.bool_]
    masks: NDArray[np.int32]
    mask_index: NDArray[np.int32]
    states: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        """Bytes held by all arrays."""
        return sum(getattr(self, field.name).nbytes for field in fields(self))

    def next_state(self, state: int, token_id: int) -> int:
        """The state after `token_id`; 0 if it is not allowed."""
        return int(self.transitions[state, self.token_class[token_id]])

    def bitmask(self, state: int) -> NDArray[np.int32]:
        """The tokens that `state` allows: (W,) int32, a row of `masks`."""
        mask: NDArray[np.int32] = self.masks[self.mask_index[state]]
        return mask


class TableBuilder:
    """Builds the tables of all states that tokens reach; see `TokenFSM.to_tensors`.

    Classes are split where a state distinguishes their tokens. In all states before, a new class has the transitions of the class that it
    was split off, so for each state only the transitions of the classes at that moment are stored. `steps` returns the tokens that a
    state allows, and the states to which they lead.
    """

    def __init__(
        self,
        automaton: Automaton,
        vocabulary: Vocabulary,
        steps: Callable[[int], Steps],
        max_states: int,
        max_bytes: int,
    ) -> None:
        self._automaton, self._vocabulary, self._steps = automaton, vocabulary, steps
        self._max_states, self._max_bytes = max_states, max_bytes
        self._states = [DEAD, automaton.initial_state]
        self._number = np.zeros(1024, np.int32)  # by state of the automaton; 0: not reached yet
        self._number[automaton.initial_state] = 1
        self._class = np.zeros(len(vocabulary), np.int32)
        self._sizes = np.array([len(vocabulary)])
        self._origin = [(0, 0)]  # per class: the one it was split off, and the first state that it may differ in
        self._done: list[tuple[NDArray[np.int64], NDArray[np.int32]]] = [(np.zeros(0, np.int64), np.zeros(0, np.int32))]
        self._masks = {bytes(4 * vocabulary.num_words): 0}
        self._mask_index = [0]

    def build(self) -> TokenTables:
        """The tables."""
        while len(self._done) < len(self._states):
            token_ids, targets = self._steps(self._states[len(self._done)])
            numbers = self._numbered(targets)
            self._add_mask(token_ids)
            self._split_classes(token_ids, numbers)
        used, token_class = np.unique(self._class, return_inverse=True)
        self._check_bytes(4 * len(self._states) * max(len(used), len(self._sizes)))
        nodes = self._automaton.nodes
        return TokenTables(
            _frozen(self._transitions()[:, used]),
            _frozen(token_class.astype(np.int32)),
            _frozen(np.array([nodes[state].nullable for state in self._states])),
            _frozen(np.frombuffer(b"".join(self._masks), np.int32).reshape(len(self._masks), -1)),
            _frozen(np.array(self._mask_index, np.int32)),
            _frozen(np.array(self._states, np.int32)),
        )

    def _numbered(self, targets: NDArray[np.int32]) -> NDArray[np.int32]:
        if len(self._automaton) > len(self._number):
            more = np.zeros(2 * len(self._automaton) - len(self._number), np.int32)
            self._number = np.concatenate([self._number, more])
        new = np.unique(targets[self._number[targets] == 0])
        if len(self._states) - 1 + len(new) > self._max_states:
            said = f"tables for more than {self._max_states:,} states. Use the lazy `TokenFSM`, a smaller language, or raise `max_states`."
            raise BudgetExceeded(said, "max_states", self._max_states)
        self._number[new] = np.arange(len(self._states), len(self._states) + len(new))
        self._states += new.tolist()
        return self._number[targets]

    def _add_mask(self, token_ids: NDArray[np.int32]) -> None:
        words = bitmask.from_ids(token_ids, self._vocabulary.num_words)
        if self._automaton.is_accepting(self._states[len(self._done)]):
            words = words | self._vocabulary.eos_mask
        self._mask_index.append(self._masks.setdefault(words.tobytes(), len(self._masks)))
        self._check_bytes(words.nbytes * len(self._masks))

    def _split_classes(self, token_ids: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """Split classes of which only some tokens are allowed, or whose tokens lead to several states."""
        size = len(self._states)
        keys = self._class[token_ids].astype(np.int64) * size + targets
        groups, which, counts = np.unique(keys, return_inverse=True, return_counts=True)
        classes = groups // size
        is_split = counts < self._sizes[classes]
        old = classes[is_split]
        classes[is_split] = new = np.arange(len(old)) + len(self._sizes)
        np.subtract.at(self._sizes, old, counts[is_split])
        self._sizes = np.concatenate([self._sizes, counts[is_split]])
        self._origin += [(parent, len(self._done)) for parent in old.tolist()]
        if len(new):
            self._class[token_ids] = classes[which]
        self._done.append((classes, (groups % size).astype(np.int32)))

    def _transitions(self) -> NDArray[np.int32]:
        table = np.zeros((len(self._sizes), len(self._states)), np.int32)  # by class first
        for state, (classes, targets) in enumerate(self._done):
            table[classes, state] = targets
        for part, (parent, first) in enumerate(self._origin):
            table[part, :first] = table[parent, :first]
        return table.T

    def _check_bytes(self, nbytes: int) -> None:
        if nbytes > self._max_bytes:
            said = f"tables of more than {self._max_bytes:,} bytes. Use the lazy `TokenFSM`, or raise `max_bytes`."
            raise BudgetExceeded(said, "max_bytes", self._max_bytes)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array
