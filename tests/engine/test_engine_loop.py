"""The loop with policies made for the test: sampling, appending, rewinding, waiting, stopping, failing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from outlines_cont import Branch, Engine, Policy, RowView, TokenSet, continuous, control, generate
from outlines_cont.control import Controller
from outlines_cont.engine.job import Job
from outlines_cont.errors import DeadEnd, InvalidLogits, UnsupportedBranch
from outlines_cont.models import HuggingFaceModel, Meter
from outlines_cont.policies import FreeText
from outlines_cont.samplers import Sampler, multinomial
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests.fakes import EOS, FAMILIES, VOCAB_SIZE, random_model, saying, scripted_model
from tests.oracle import greedy_ids, rescored
from tests.rows import finished, row_of

Plan = Callable[[int, RowView], list[Branch]]


@dataclass(frozen=True)
class Planned(Policy[int]):
    """A policy whose state is the number of tokens, and whose branches a function makes."""

    plan: Plan
    look_back: int = 8
    seen: list[int] = field(default_factory=list, compare=False)

    @property
    def horizon(self) -> int:
        return self.look_back

    def initial(self, row: RowView) -> int:
        return 0

    def branches(self, state: int, row: RowView) -> list[Branch]:
        assert len(row.token_ids) - row.piece_start == state
        self.seen.append(state)
        return self.plan(state, row)

    def advance(self, state: int, token_id: int) -> int:
        return state + 1


def _free(state: int, row: RowView) -> list[Branch]:
    return [Branch(sample_mask=TokenSet.all)]


def _write(
    model: HuggingFaceModel,
    prompts: Sequence[Sequence[int]],
    policies: Sequence[Sequence[Policy[Any]]],
    *,
    max_tokens: int = 8,
    sampler: Sampler | None = None,
) -> list[StateRow]:
    counts = Meter()
    rows = [
        row_of(StateRow.of_prompt(ids, RandomStream(7, batch)), steering, model, counts=counts, max_tokens=max_tokens, sampler=sampler)
        for batch, (ids, steering) in enumerate(zip(prompts, policies, strict=True))
    ]
    done = finished(Job(rows, counts), Engine(model))
    return [done[i] for i in range(len(rows))]


def _ids(text: str) -> list[int]:
    return random_model().tokenizer.encode(text, add_special_tokens=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("look_back", [0, 8])
def test_after_a_rewind_everything_is_as_if_the_tokens_had_never_been(family: str, look_back: int) -> None:
    model = random_model(family)
    retried: list[int] = []

    def plan(state: int, row: RowView) -> list[Branch]:
        if state == 5 and not retried:
            retried.extend(row.token_ids[-3:])
            return [Branch(backtrack=3, sample_mask=~TokenSet.of([row.token_ids[-3]]))]
        return _free(state, row)

    prompts = [_ids("the name"), _ids("a")]
    with model.meter() as meter:
        row, other = _write(model, prompts, [[Planned(plan, look_back)], [Planned(_free, look_back)]])
    kept = prompts[0] + greedy_ids(model, prompts[0], 2)
    assert greedy_ids(model, prompts[0], 5)[2:] == retried
    logits = model.hugging_face(input_ids=torch.tensor([kept], device=model.device)).logits[0, -1]
    logits[retried[0]] = -torch.inf
    second = [*kept, int(logits.argmax())]
    assert second + greedy_ids(model, second, 5) == list(row.token_ids)
    assert prompts[1] + greedy_ids(model, prompts[1], 8) == list(other.token_ids)
    assert rescored(model, row.token_ids)[len(prompts[0]) :] == pytest.approx(row.logprobs[len(prompts[0]) :], abs=1e-9)
    assert meter.rewound_tokens == 3
    # With enough logits looked back on, nothing is fed again.
    assert (0 if look_back else 1) == meter.recomputed_tokens


def test_a_retry_draws_fresh_random_numbers() -> None:
    model = random_model()
    draws: list[int] = []

    def plan(state: int, row: RowView) -> list[Branch]:
        if state == 1 and len(draws) < 6:
            draws.append(row.token_ids[-1])
            return [Branch(backtrack=1)]
        return _free(state, row)

    _write(model, [_ids("the")], [[Planned(plan)]], sampler=multinomial(temperature=5.0))
    assert len(set(draws)) > 2


def test_a_sampled_token_that_begins_a_sequence_brings_all_of_it() -> None:
    model = scripted_model(saying("yes", logit=8.0))
    letters = {letter: model.tokenizer.encode(letter)[0] for letter in "yesno"}
    yes, no = [letters[c] for c in "yes"], [letters[c] for c in "no"]

    def plan(state: int, row: RowView) -> list[Branch]:
        return [Branch(sample_mask=TokenSet.of([yes[0], no[0]]), ff_tokens=[no, yes])] if state == 0 else []

    with model.meter() as meter:
        (row,) = _write(model, [_ids(">")], [[Planned(plan)]])
    assert yes == list(row.token_ids[2:])
    assert row.kinds == b"ppgff"
    assert (row.finish_reason, meter.sampled_tokens, meter.forced_tokens) == ("stop", 1, 2)
    assert -math.log(1 + (VOCAB_SIZE - 1) * math.exp(-8)) == pytest.approx(sum(row.logprobs) / 3, abs=1e-5)


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_a_limit_cuts_a_sequence_after_the_other_policies_were_asked(max_tokens: int) -> None:
    model = scripted_model(saying("yes", logit=8.0))
    yes, no = ([model.tokenizer.encode(letter)[0] for letter in word] for word in ("yes", "no"))

    def spell(state: int, row: RowView) -> list[Branch]:
        return [Branch(sample_mask=TokenSet.all, ff_tokens=[yes, no] if state == 0 else [])]

    def refuse(state: int, row: RowView) -> list[Branch]:
        if state and row.token_ids[row.piece_start] == yes[0]:
            return [Branch(backtrack=state, exclude=TokenSet.of(yes[:1]))]
        return _free(state, row)

    def stop(state: int, row: RowView) -> list[Branch]:
        return [] if state else _free(state, row)

    (row,) = _write(model, [_ids(">")], [[Planned(spell), Planned(refuse)]], max_tokens=max_tokens)
    assert row.token_ids[2] != yes[0]
    assert row.finish_reason == "length"
    (row,) = _write(model, [_ids(">")], [[Planned(spell), Planned(stop)]], max_tokens=max_tokens)
    assert yes[:max_tokens] == list(row.token_ids[2:])
    assert row.finish_reason == "stop"
    (row,) = _write(model, [_ids(">")], [[Planned(spell)]], max_tokens=max_tokens)
    assert row.piece is not None
    assert yes == [*row.token_ids[2:], *row.piece.owed], "resuming continues with the rest"


def test_text_without_a_mask_is_appended_in_one_forward_and_scored() -> None:
    model = random_model()
    word = model.tokenizer.encode("false alarm")

    def plan(state: int, row: RowView) -> list[Branch]:
        return [Branch(ff_tokens=[word])] if state == 0 else _free(state, row)

    with model.meter() as meter:
        (row,) = _write(model, [_ids("the")], [[Planned(plan)]], max_tokens=len(word) + 1)
    assert word == list(row.token_ids[2 : 2 + len(word)])
    assert meter.forwards == 1
    assert rescored(model, row.token_ids)[2:] == pytest.approx(row.logprobs[2:], abs=1e-9)
    assert (0.0,) * len(word) == row.sampling_logprobs[2 : 2 + len(word)]


def test_a_waiting_row_goes_on_later_and_does_not_hold_the_others() -> None:
    model = random_model("gpt2")

    def patient(policy_steps: list[int]) -> Plan:
        def plan(state: int, row: RowView) -> list[Branch]:
            policy_steps.append(state)
            return [Branch()] if len(policy_steps) <= 3 else _free(state, row)

        return plan

    prompts = [_ids("the name"), _ids("a"), _ids("yes no")]
    rows = _write(model, prompts, [[Planned(_free)], [Planned(patient([]))], [Planned(_free)]])
    assert [ids + greedy_ids(model, ids, 8) for ids in prompts] == [list(row.token_ids) for row in rows]


def test_rows_that_all_wait_are_refused_instead_of_waiting_for_ever() -> None:
    (row,) = _write(random_model(), [_ids("the")], [[Planned(lambda state, row: [Branch()])]])
    assert row.finish_reason == "error"
    assert "every row of the call waits" in str(row.error)


class Forking(Controller):
    """Writes two tokens, follows some branches, then writes up to eight tokens in all."""

    def __init__(self, forks: list[Branch], mask: TokenSet = TokenSet.all) -> None:
        self.forks, self.mask, self.calls = forks, mask, 0

    def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        self.calls += 1
        if self.calls == 3:
            return self.forks
        return [Branch(sample_mask=self.mask)] if self.calls <= 8 else []


@pytest.mark.parametrize("family", FAMILIES)
def test_several_branches_fork_the_row_each_with_its_mask(family: str) -> None:
    model = random_model(family)
    ids = _ids("the name")
    written = greedy_ids(model, ids, 2)
    masks = [TokenSet.of([token_id]) for token_id in (30, 31, 32)]
    branches = [*(Branch(sample_mask=mask) for mask in masks[:2]), Branch(backtrack=1, sample_mask=masks[2])]
    with model.meter() as meter:
        forks = control.run(model, Forking(branches, FreeText.of_model(model).token_ids), "the name").forks
    starts = [[*ids, *written, 30], [*ids, *written, 31], [*ids, *written[:1], 32]]
    for start, fork in zip(starts, forks, strict=True):
        assert fork.state is not None
        found = [*fork.state.rows[0][0].token_ids[len(start) :], EOS]  # an end is a token like all others
        assert greedy_ids(model, start, 5) == found[: found.index(EOS)]
    assert meter.recomputed_tokens == 0


def test_forks_draw_random_numbers_of_their_own_and_at_their_own_temperature() -> None:
    model = random_model()
    branches = [Branch(sample_mask=TokenSet.all, temperature=0.0), *[Branch(sample_mask=TokenSet.all)] * 5]

    def rows() -> list[StateRow]:
        state = control.run(model, Forking(branches), "the", sampler=multinomial(temperature=20.0), rng=7).state
        return list(state.rows[0])

    found = rows()
    before = list(found[0].token_ids[:-6])
    assert greedy_ids(model, before, 1) == list(found[0].token_ids[len(before) : len(before) + 1])
    assert len({row.token_ids for row in found}) == 6
    assert len({row.stream.path for row in found}) == 6
    assert [row.token_ids for row in found] == [row.token_ids for row in rows()]


@pytest.mark.parametrize("num_others", [0, 1])
def test_a_policy_that_forks_is_refused_and_the_other_rows_go_on(num_others: int) -> None:
    fork = Planned(lambda state, row: [Branch(sample_mask=TokenSet.all)] * 2)
    policies = [[fork, *[Planned(_free)] * num_others], [Planned(_free)]]
    bad, good = _write(random_model(), [_ids("the"), _ids("a")], policies)
    assert isinstance(bad.error, UnsupportedBranch)
    assert "expected one branch or none from a policy, got 2 of" in str(bad.error)
    assert _ids("a") + greedy_ids(random_model(), _ids("a"), 8) == list(good.token_ids)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_distribution_end_their_row_alone(value: float) -> None:
    healthy = saying("abc")

    def script(ids: list[int]) -> dict[int, float]:
        if model.tokenizer.text_bytes(ids).startswith(b"x>a"):
            return {5: value}
        return healthy(ids)

    model = scripted_model(script)
    bad, good = _write(model, [_ids("x>"), _ids(">")], [[Planned(_free)], [Planned(_free)]])
    assert isinstance(bad.error, InvalidLogits)
    assert model.tokenizer.decode(bad.token_ids) == "x>a"
    assert (model.tokenizer.decode(good.token_ids), good.finish_reason) == (">abc", "stop")


def test_a_mask_of_tokens_that_the_model_never_gives_is_a_dead_end() -> None:
    model = scripted_model(lambda ids: {9: -float("inf")})
    (row,) = _write(model, [_ids(">")], [[Planned(lambda state, row: [Branch(sample_mask=TokenSet.of([9]))])]])
    assert isinstance(row.error, DeadEnd)


def test_policies_that_exclude_each_other_are_a_dead_end() -> None:
    only_a = Planned(lambda state, row: [Branch(sample_mask=TokenSet.of([10]))])
    only_b = Planned(lambda state, row: [Branch(sample_mask=TokenSet.of([11]))])
    (row,) = _write(random_model(), [_ids("the")], [[only_a, only_b]])
    assert isinstance(row.error, DeadEnd)
    assert "exclude each other" in str(row.error)


def test_forced_text_goes_as_far_as_the_other_policies_agree() -> None:
    word = [20, 21, 22, 23]
    leader = Planned(lambda state, row: [Branch(ff_tokens=[word])] if state == 0 else _free(state, row))
    picky = Planned(lambda state, row: [Branch(sample_mask=TokenSet.of([20, 21, 30]))])
    (row,) = _write(random_model(), [_ids("the")], [[leader, picky]], max_tokens=3)
    assert list(row.token_ids[2:4]) == [20, 21]
    assert row.kinds == b"pp" + b"ffg"
    refuses = Planned(lambda state, row: [Branch(sample_mask=TokenSet.of([30]))])
    (row,) = _write(random_model(), [_ids("the")], [[leader, refuses]])
    assert isinstance(row.error, UnsupportedBranch)


def test_giving_back_more_than_the_piece_is_refused() -> None:
    greedy_back = Planned(lambda state, row: [Branch(backtrack=3)] if state == 2 else _free(state, row))
    (row,) = _write(random_model(), [_ids("the")], [[greedy_back]])
    assert "at most 2 tokens" in str(row.error)


def test_a_mask_with_only_the_end_costs_no_forward() -> None:
    model = random_model()
    end = Planned(lambda state, row: [Branch(sample_mask=TokenSet.of([EOS]))])
    with model.meter() as meter:
        (row,) = _write(model, [_ids("the")], [[end]])
    assert (row.finish_reason, meter.forwards, meter.sampled_tokens) == ("constraint", 0, 0)


def test_rows_leave_the_batch_when_they_end() -> None:
    model = random_model()
    lengths = [1, 6, 3]
    steering = [[Planned(lambda s, r, n=n: [] if s == n else _free(s, r))] for n in lengths]  # type: ignore[misc]
    prompts = [_ids("the name"), _ids("a"), _ids("yes")]
    with model.meter() as meter:
        rows = _write(model, prompts, steering)
    assert sum(map(len, prompts)) + sum(n - 1 for n in lengths) == meter.fed_tokens
    assert max(lengths) == meter.forwards
    for ids, n, row in zip(prompts, lengths, rows, strict=True):
        assert ids + greedy_ids(model, ids, n) == list(row.token_ids)
        assert row.kv is not None
        assert len(row.token_ids) - 1 == len(row.kv)
    # One that left early does not keep the others' keys and values alive.
    assert rows[0].kv is not None
    assert rows[0].kv.parts[0].buffer.num_rows == 1


def test_a_dead_end_says_what_was_asked_for_and_by_which_keyword() -> None:
    digits = [i for i, data in enumerate(random_model().tokenizer.token_bytes) if data and data.strip(b"-0123456789") == b""]
    model = scripted_model(lambda ids: dict.fromkeys(digits, -float("inf")))
    schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 10}}, "required": ["age"]}
    state = continuous(generate.json(model, schema))(">")
    error = state.errors[0][0]
    assert isinstance(error, DeadEnd)
    assert "'>{\"age\": '" in str(error)
    assert "/properties/age/" in str(error)
    assert "probability zero" in str(error)
