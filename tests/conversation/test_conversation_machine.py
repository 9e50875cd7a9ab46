"""Conversations of one executor in any order of calls: ids are those of plain lists, logits those of a fresh run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from outlines_cont import BatchedExecutor, Conversation, engine_of, models
from outlines_cont.conversation.executor import Mark
from outlines_cont.errors import InferenceRequired, PromptRequired
from outlines_cont.models import HuggingFaceModel
from tests.fakes import FAMILIES, FakeTokenizer, random_network, recurrent_network
from tests.oracle import next_logits

TOKENIZER = FakeTokenizer()
_AT = st.integers(0, 99)
_IDS = st.lists(st.integers(3, len(TOKENIZER.token_bytes) - 6) | st.sampled_from(TOKENIZER.encode("🙂é")), max_size=12)


class Conversations(RuleBasedStateMachine):
    """Four conversations at most, each with a list of its ids and a mark that its forks have, too."""

    @initialize(
        family=st.sampled_from([*FAMILIES, "recurrent"]),
        most=st.sampled_from([3, 7, 2048]),
        stacks=st.booleans(),
        kept=st.sampled_from([2**20, 0]),
    )
    def begin(self, family: str, most: int, stacks: bool, kept: int) -> None:
        network = recurrent_network() if family == "recurrent" else random_network(family)
        self.model = models.from_transformers(network, TOKENIZER)
        self.stacks = mock.patch.object(HuggingFaceModel, "can_stack", mock.PropertyMock(return_value=False))
        if not stacks:
            self.stacks.start()
        self.model.capabilities  # probed before forwards are counted
        self.largest, forward = 0, self.model.forward

        def counted(input_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
            self.largest = max(self.largest, input_ids.numel())
            return forward(input_ids, *rest)

        self.model.forward = counted  # type: ignore[method-assign]
        self.most = engine_of(self.model).max_batch_tokens = most
        self.executor = BatchedExecutor(self.model, seed=1, kept_logits_bytes=kept)
        self.all = list[tuple[Conversation, list[int], tuple[Mark, list[int]] | None]]()
        self.create("the name", True)

    def teardown(self) -> None:
        mock.patch.stopall()

    def _put(self, conversation: Conversation, ids: list[int], mark: tuple[Mark, list[int]] | None) -> None:
        self.all = [*(held for held in self.all if held[0] is not conversation)][-3:]
        self.all.append((conversation, ids, mark))

    @rule(text=st.sampled_from(["the name of the red rose", "a", "日🙂"]), is_text=st.booleans())
    def create(self, text: str, is_text: bool) -> None:
        ids = TOKENIZER.encode(text, add_special_tokens=is_text)
        self._put(self.executor.create(text if is_text else ids), ids, None)

    @rule(at=_AT, text=st.none() | st.sampled_from([" of", "he", "", "é"]), ids=_IDS)
    def prompt(self, at: int, text: str | None, ids: list[int]) -> None:
        conversation, before, mark = self.all[at % len(self.all)]
        if text is not None:
            ids = TOKENIZER.encode_inside(text, before) if before else TOKENIZER.encode(text, add_special_tokens=True)
        if len(before) < 60:
            conversation.prompt(ids if text is None else text)
            self._put(conversation, before + ids, mark)

    @rule()
    def infer(self) -> None:
        pending = self.executor.num_pending
        assert pending <= self.executor.infer()
        assert self.executor.num_pending == 0

    @rule(at=_AT)
    def step(self, at: int) -> None:
        conversation, ids, mark = self.all[at % len(self.all)]
        if not ids or conversation.num_pending:
            with pytest.raises(InferenceRequired if ids else PromptRequired, match=r"Call `|call `"):
                conversation.step()
            return
        wanted = int(next_logits(self.model, ids)[-1].argmax())
        assert wanted == conversation.sample() == conversation.step()
        assert conversation.num_pending == 1
        self._put(conversation, [*ids, wanted], mark)

    @rule(at=_AT, count=st.integers(1, 2), same=st.booleans())
    def fork(self, at: int, count: int, same: bool) -> None:
        conversation, ids, mark = self.all[at % len(self.all)]
        forks = [conversation.fork(same=same)] if count == 1 else conversation.fork(count, same=same)
        for fork in forks:
            self._put(fork, ids, mark)

    @rule(at=_AT, count=_AT)
    def rewind(self, at: int, count: int) -> None:
        conversation, ids, mark = self.all[at % len(self.all)]
        pending, count = conversation.num_pending, count % (len(ids) + 1)
        conversation.rewind(count)
        assert conversation.num_pending == max(pending - count, 0)
        self._put(conversation, ids[: len(ids) - count], mark)

    @rule(at=_AT, start=st.just(0) | _AT, stop=_AT)
    def drop(self, at: int, start: int, stop: int) -> None:
        conversation, ids, mark = self.all[at % len(self.all)]
        start, stop = sorted((start % (len(ids) + 1), stop % (len(ids) + 1)))
        conversation.drop(start, stop)
        self._put(conversation, ids[:start] + ids[stop:], mark)

    @rule(at=_AT, back=st.booleans())
    def mark_or_go_back(self, at: int, back: bool) -> None:
        conversation, ids, mark = self.all[at % len(self.all)]
        if mark is None or not back:
            mark = conversation.mark(), ids
            assert f"{len(ids)} tokens" in repr(mark[0])
        else:
            conversation.rewind_to(mark[0])
        self._put(conversation, mark[1], mark)

    @rule(at=_AT, kv=st.booleans())
    def save_and_load(self, at: int, kv: bool) -> None:
        conversation, ids, _ = self.all[at % len(self.all)]
        with tempfile.TemporaryDirectory() as folder:
            conversation.save(Path(folder, "saved"), kv=kv)
            self._put(self.executor.load(Path(folder, "saved")), ids, None)

    @rule(at=_AT)
    def through_a_state(self, at: int) -> None:
        conversation, ids, _ = self.all[at % len(self.all)]
        if ids:
            self._put(self.executor.create(conversation.state), ids, None)

    @rule(at=_AT)
    def close(self, at: int) -> None:
        if len(self.all) > 1:
            self.all.pop(at % len(self.all))[0].close()

    @invariant()
    def every_conversation_is_its_ids(self) -> None:
        for conversation, ids, _ in self.all:
            assert ids == conversation.token_ids
            assert len(ids) == len(conversation)
            assert TOKENIZER.decode(ids) == conversation.text
            assert not conversation.is_approximate
            num_fed = len(ids) - conversation.num_pending
            if num_fed:
                wanted = next_logits(self.model, ids[:num_fed])
                assert torch.allclose(wanted, conversation.logits(range(num_fed)), atol=1e-6)
        assert self.largest <= self.most


TestConversations = Conversations.TestCase
TestConversations.settings = settings(max_examples=8, stateful_step_count=30, deadline=None)
