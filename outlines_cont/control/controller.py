"""`Controller`: a callback, as in AICI, that returns after each step the branches with which a sequence continues: tokens to rewind
(`backtrack`), to append (`ff_tokens`, fast-forward), or a mask to sample under. Several branches fork the sequence with a deep copy of its
controller (a function is shared), an empty list stops it; `ControllerDriver` raises `ScriptError` for invalid branches.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Self

from outlines_cont.errors import ScriptError, shortened
from outlines_cont.policies.branch import Branch, check_mask
from outlines_cont.programs.fork_program import ForkDriver, ForkPlan, ForkView

MidProcess = Callable[[int, int, list[int]], list[Branch]]


class Controller(ABC):
    """Controls a sequence. Derive from it, or pass a function with the arguments of `mid_process`.

    It is called in a thread while the last tokens are being fed, never twice at the same time. Ends of text are tokens like all others:
    the controller decides when to stop.
    """

    @abstractmethod
    def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        """Return the next branch; several to fork, none to stop.

        Args:
            branch_index: the index of the branch that this sequence has followed, of those that were returned last.
            last_backtrack: how many tokens were rewound since then.
            last_append: the tokens that were appended after that; empty at the first call, and after a wait.
        """

    def fork(self) -> Self:
        """Return the controller of a fork, a deep copy. Override it if attributes cannot be copied."""
        try:
            return copy.deepcopy(self)
        except TypeError as error:
            raise ScriptError(
                f"expected a controller that can be copied for a fork, got {type(self).__name__} ({error}). Override its method `fork`."
            ) from error


class ControllerDriver(ForkDriver):
    """Calls a controller for one fork, and checks its branches. All forks share a function that is a controller, and its state."""

    speculates = True

    def __init__(self, controller: Controller | MidProcess, vocab_size: int, branch_index: int = 0) -> None:
        self._controller = controller
        self._vocab_size = vocab_size
        self._branch_index = branch_index

    def call(self, view: ForkView) -> list[ForkPlan]:
        """Return the branches of the controller, the first for this fork, the others with copies of it."""
        view.spend_step()
        controller = self._controller
        mid_process = controller.mid_process if isinstance(controller, Controller) else controller
        branches = mid_process(self._branch_index, view.backtracked, view.appended)
        self._check(branches, view)
        view.reserve(len(branches) - 1)
        self._branch_index = 0
        plans = [ForkPlan(self, branch) for branch in branches[:1]]
        for index, branch in enumerate(branches[1:], 1):
            fork = controller.fork() if isinstance(controller, Controller) else controller
            plans.append(ForkPlan(ControllerDriver(fork, self._vocab_size, index), branch))
        return plans

    def _check(self, branches: object, view: ForkView) -> None:
        if not isinstance(branches, Sequence) or not all(isinstance(branch, Branch) for branch in branches):
            raise ScriptError(f"expected a list of `Branch` from the controller, got {shortened(repr(branches), 200)}")
        room = len(view.token_ids) - 1
        for branch in branches:
            if branch.backtrack > room:
                raise ScriptError(
                    f"expected a controller to rewind at most {room} tokens, all but the first of the prompt, got {branch.backtrack}"
                )
            if branch.sample_mask is not None:
                try:
                    check_mask(branch.sample_mask, self._vocab_size, "sample_mask")
                except ValueError as error:
                    raise ScriptError(str(error)) from error
            for token_id in chain.from_iterable(branch.ff_tokens):
                if not 0 <= token_id < self._vocab_size:
                    raise ScriptError(
                        f"expected token ids from 0 to {self._vocab_size - 1} in `ff_tokens`, got {token_id}. "
                        "Encode text with the tokenizer of the model."
                    )
