"""The loop in its plain, slow form: one row, a whole forward for every token, nothing kept, nothing shared, no batch.

It follows `Branch` as its docstring says it; `compose` and the policies are those of the engine, each of which has oracles of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch

from outlines_cont import Branch, Policy, TokenSet
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies.compose import compose
from outlines_cont.samplers import Sampler
from outlines_cont.sampling import TokenCounts
from outlines_cont.sampling.random_stream import RandomStream
from tests.healing import num_open
from tests.oracle import next_logits


class PlainState:
    """A policy with its state after every token of the piece."""

    def __init__(self, policy: Policy[Any], row: Any) -> None:
        self.policy, self.retries, self.states = policy, 0, [policy.initial(row)]

    @property
    def last(self) -> Any:
        """The state after the last token."""
        return self.states[-1]

    def append(self, token_id: int) -> None:
        self.states.append(self.policy.advance(self.last, token_id))

    def rewind(self, count: int, row: Any) -> None:
        """Drop the last states; `row` is the row as it was before, for the policy that has requested it."""
        before = self.last
        self.states = self.states[: len(self.states) - count]
        if row is not None:
            self.states[-1] = self.policy.rewound(before, self.last, row)

    def give_up(self, row: Any, reason: str) -> None:
        self.states[-1] = self.policy.give_up(self.last, row, reason)


class PlainRow:
    """One row, as policies see it.

    Args:
        model: what writes.
        token_ids: what stands before the piece.
        written: for each of these whether a generator wrote it.
        policies: what steers the row.
        sampler: how a token is drawn.
        stream: the random numbers.
        max_tokens: the most tokens of the piece.
        heal: give tokens back at the end, whose text is spelled first.
        negative: the ids of a negative prompt, and the scale of the guidance.
    """

    def __init__(
        self,
        model: HuggingFaceModel,
        token_ids: Sequence[int],
        written: Sequence[bool],
        policies: Sequence[Policy[Any]],
        sampler: Sampler,
        stream: RandomStream,
        max_tokens: int,
        *,
        heal: bool = False,
        negative: tuple[Sequence[int], float] | None = None,
    ) -> None:
        self.negative = negative
        kept = len(token_ids) - (num_open(model.tokenizer.token_bytes, token_ids) if heal else 0)
        self.healed = model.tokenizer.text_bytes(token_ids[kept:])
        token_ids, written = token_ids[:kept], written[:kept]
        self.model, self.sampler, self.max_tokens = model, sampler, max_tokens
        self.token_ids, self.written = [*token_ids], [*written]
        self.piece_start = self.first_open = len(token_ids)
        self.sampling_logprobs, self.drawn = [0.0] * len(token_ids), [False] * len(token_ids)
        self.refused: dict[int, tuple[set[int], set[int], int, int]] = {}  # excluded, avoided, who, how often
        self.stream, self.retries, self.rejections, self.is_random = stream.open(), 0, 0, sampler.needs_random
        self.reason, self.error = "", ""
        self.states = [PlainState(policy.for_model(model), self) for policy in policies]

    # -- what policies read --------------------------------------------------------------------------------------------

    def was_drawn(self, index: int) -> bool:
        return index >= self.piece_start and self.drawn[index]

    def was_given(self, index: int) -> bool:
        return index >= self.piece_start and not self.written[index]

    def sampling_logprob(self, index: int) -> float:
        return self.sampling_logprobs[index]

    def excluded(self, index: int) -> frozenset[int]:
        excluded, avoided, _, _ = self.refused.get(index, (set(), set(), 0, 0))
        return frozenset(excluded | avoided)

    def logits_before(self, index: int) -> torch.Tensor:
        positive = next_logits(self.model, self.token_ids[:index])[-1].cpu()
        if self.negative is None:
            return positive
        prompt, scale = self.negative
        negative = next_logits(self.model, [*prompt, *self.token_ids[self.piece_start : index]])[-1].cpu()
        return scale * positive.log_softmax(-1) + (1 - scale) * negative.log_softmax(-1)

    def uniform(self, *key: int) -> float:
        return self.stream.decision(*key)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def run(self) -> PlainRow:
        """Write the piece."""
        try:
            while not self.reason:
                branches, decider = compose([(state.policy, state.last) for state in self.states], self)
                state = self.states[decider]
                if branches:
                    self._follow(branches[0], state)
                else:
                    self.reason = state.policy.finish_reason
        except Exception as error:
            self.reason, self.error = "error", type(error).__name__
        return self

    @property
    def ids(self) -> list[int]:
        """Those of the piece."""
        return self.token_ids[self.piece_start :]

    @property
    def num_new(self) -> int:
        """How many tokens of the piece have text of its own."""
        ends = accumulate(len(self.model.tokenizer.text_bytes([token_id])) for token_id in self.ids)
        return sum(end > len(self.healed) for end in ends)

    def _follow(self, branch: Branch, state: PlainState) -> None:
        if branch.is_retry:
            most = state.policy.max_retries
            if most is not None and state.retries >= most:
                self._give_up(state)
                return
            self._count(state)
            self.rejections += not branch.exclude and not branch.avoid
        if branch.backtrack:
            self._cut(len(self.token_ids) - branch.backtrack, state)
        if branch.is_retry and not self._refuse(branch, state):
            return
        if branch.sample_mask is not None:
            assert not branch.ff_tokens
            self._sample(branch.sample_mask)
        elif branch.ff_tokens:
            (token_ids,) = branch.ff_tokens
            excluded = self.refused.get(len(self.token_ids), (set[int](), set(), 0, 0))[0]
            if not branch.backtrack and token_ids[0] in excluded:
                self._leave()
                return
            for token_id in token_ids:
                self._append(token_id, is_drawn=False, is_written=not branch.backtrack)
                if not branch.backtrack and self.num_new > self.max_tokens:
                    self._cut(len(self.token_ids) - 1, None)
                    self.reason = "length"
                    return

    def _count(self, state: PlainState) -> None:
        state.retries += 1
        self.retries += 1

    def _refuse(self, branch: Branch, state: PlainState) -> bool:
        at = len(self.token_ids)
        excluded, avoided, _, times = self.refused.get(at, (set(), set(), 0, 0))
        for target, tokens in ((excluded, branch.exclude), (avoided, branch.avoid)):
            target.update(i for i in range(self.model.vocab_size) if tokens is not None and i in tokens)
        self.refused[at] = excluded, avoided, self.states.index(state), times + 1
        most = state.policy.max_retries_per_place
        if most is not None and times + 1 > most:
            self._leave()
            return False
        return True

    def _leave(self) -> None:
        at = len(self.token_ids)
        who = self.refused[at][2]
        state = self.states[who]
        index = next((i for i in range(at - 1, self.first_open - 1, -1) if self.was_drawn(i)), None)
        most = state.policy.max_retries
        if index is None or (most is not None and state.retries >= most):
            self._give_up(state)
            return
        token_id = self.token_ids[index]
        self._cut(index, None)
        self._count(state)
        excluded, avoided, _, times = self.refused.get(index, (set(), set(), 0, 0))
        self.refused[index] = excluded | {token_id}, avoided, who, times + 1

    def _give_up(self, state: PlainState) -> None:
        state.give_up(self, "there is nothing else")
        self.refused.pop(len(self.token_ids), None)

    def _sample(self, mask: TokenSet) -> None:
        eos, size = self.model.eos_token_ids, self.model.vocab_size
        allowed = {i for i in range(size) if i in mask}
        if not allowed - eos:
            assert allowed
            self._end("constraint")
            return
        excluded, avoided, _, _ = self.refused.get(len(self.token_ids), (set(), set(), 0, 0))
        left = (allowed - excluded - avoided) or (allowed - excluded)
        if not left:
            self._leave()
            return
        if self.num_new >= self.max_tokens:
            self.reason = "length"
            return
        logits = torch.full((1, size), -torch.inf, dtype=torch.float64)
        places = sorted(left)
        logits[0, places] = self.logits_before(len(self.token_ids))[places].double()
        uniforms = torch.tensor([self.stream.peek()], dtype=torch.float64) if self.is_random else None
        self.stream = self.stream.after(int(self.is_random))
        known = [x if drawn else None for x, drawn in zip(self.sampling_logprobs, self.drawn, strict=True)]
        counts = TokenCounts(self.token_ids, self.written, known, surprise_start=0)
        token_ids, logprobs = self.sampler.sample(logits, uniforms, [counts])
        if int(token_ids[0]) in eos:
            self._end("stop")
        else:
            self._append(int(token_ids[0]), is_drawn=True, is_written=True, logprob=float(logprobs[0]))

    def _end(self, reason: str) -> None:
        for state in self.states:
            branch = state.policy.at_end(state.last, self)
            if branch is not None:
                self._follow(branch, state)
                return
        self.reason = reason

    def _append(self, token_id: int, *, is_drawn: bool, is_written: bool, logprob: float = 0.0) -> None:
        for state in self.states:
            state.append(token_id)
        before = self.num_new
        self.token_ids.append(token_id)
        is_new = self.num_new > before  # else it only spells what was given back
        self.written.append(is_written and is_new)
        self.drawn.append(is_drawn and is_new)
        self.sampling_logprobs.append(logprob)

    def _cut(self, length: int, decider: PlainState | None) -> None:
        count = len(self.token_ids) - length
        for state in self.states:
            state.rewind(count, self if state is decider else None)
        for values in (self.token_ids, self.written, self.drawn, self.sampling_logprobs):
            del values[length:]
        self.refused = {index: what for index, what in self.refused.items() if index <= length}
