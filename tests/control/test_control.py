"""Controllers: what a branch means, forks, waits, and errors that stay where they are."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import fsm
from outlines_cont import Branch, SequenceState, TokenSet, continuous, control, generate, models, samplers
from outlines_cont.control import Append, Controller, Replay
from outlines_cont.engine import engine as engine_module
from outlines_cont.errors import DeadlockError, InvalidLogits, OptionError, PromptTypeError, SampleMismatch, ScriptError
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies import Constraint
from tests.examples import first
from tests.fakes import EOS, FAMILIES, FakeTokenizer, random_model, random_network, recurrent_network, saying, scripted_model
from tests.oracle import next_logits, rescored

Call = tuple[int, int, list[int]]


class Listed(Controller):
    """Returns what a list says, call by call, and notes how it was called."""

    def __init__(self, *plan: list[Branch]) -> None:
        self.plan = list(plan)
        self.calls: list[Call] = []

    def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        self.calls.append((branch_index, last_backtrack, last_append))
        return self.plan.pop(0) if self.plan else []


def ids_of(model: HuggingFaceModel, text: str) -> list[int]:
    return model.tokenizer.encode(text, add_special_tokens=True)


def best(model: HuggingFaceModel, token_ids: Sequence[int], allowed: Sequence[int]) -> int:
    logits = next_logits(model, token_ids)[-1]
    return max(allowed, key=lambda token_id: (float(logits[token_id]), -token_id))


ONE = TokenSet.of([40])
ANY = [40, 41, 42]


@pytest.mark.parametrize(
    ("branch", "wanted", "back"),
    [
        (Branch(sample_mask=ONE), [50, 51, 40], 0),
        (Branch(sample_mask=ONE, ff_tokens=[[41, 60], [40, 61, 62]]), [50, 51, 40, 61, 62], 0),
        (Branch(sample_mask=ONE, ff_tokens=[[41, 60], [40, 61], [40, 62]]), [50, 51, 40, 61], 0),
        (Branch(sample_mask=ONE, ff_tokens=[[41, 60], [42, 61]]), [50, 51, 40], 0),
        (Branch(backtrack=1, sample_mask=ONE), [50, 40], 1),
        (Branch(backtrack=2, sample_mask=ONE, ff_tokens=[[40, 9]]), [40, 9], 2),
        (Branch(ff_tokens=[[60, 61]]), [50, 51, 60, 61], 0),
        (Branch(backtrack=2, ff_tokens=[[60]]), [60], 2),
        (Branch(backtrack=1), [50], 1),
    ],
)
def test_what_a_branch_does(branch: Branch, wanted: list[int], back: int) -> None:
    model = random_model()
    start = ids_of(model, "the")
    controller = Listed([Branch(ff_tokens=[[50, 51]])], [branch])

    with model.meter() as meter:
        result = control.run(model, controller, "the")

    (fork,) = result.forks
    assert start + wanted == list(fork.state.rows[0][0].token_ids)
    assert (fork.finish_reason, fork.error) == ("stop", None)
    assert controller.calls == [(0, 0, []), (0, 0, [50, 51]), (0, back, wanted[2 - back :])]
    assert (branch.sample_mask is not None) == meter.sampled_tokens
    assert back == meter.rewound_tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_backtrack_comes_before_the_sample_which_takes_the_logits_of_the_earlier_position(family: str, count: int) -> None:
    model = random_model(family)
    free = [Branch(sample_mask=TokenSet.of(ANY))]
    controller = Listed(free, free, free, [Branch(backtrack=count, sample_mask=TokenSet.of([70, 71, 72]))])

    with model.meter() as meter:
        result = control.run(model, controller, "the name")

    ids = ids_of(model, "the name")
    for _ in range(3 - count):
        ids.append(best(model, ids, ANY))
    ids.append(best(model, ids, [70, 71, 72]))
    row = result.forks[0].state.rows[0][0]
    assert ids == list(row.token_ids)
    start = len(ids_of(model, "the name"))
    assert rescored(model, ids)[start:] == pytest.approx(row.logprobs[start:], abs=1e-9)
    # Two positions are kept; from further back one token is fed again.
    assert meter.recomputed_tokens == (1 if count == 3 else 0)


def test_a_list_of_prompts_runs_a_program_for_each_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_PATIENCE", 1e6)  # every forward waits for all controllers
    model = random_model()
    free = [Branch(sample_mask=TokenSet.of(ANY))]
    plan = [free, free, free * 2, free]
    prompts = ["the", continuous(generate.text(model))("the name", max_tokens=2), "is"]
    alone = [control.run(model, Listed(*plan), prompt) for prompt in prompts]

    with model.meter() as meter:
        together = control.run(model, Listed(*plan), prompts)

    assert [result.texts for result in alone] == [result.texts for result in together]
    awaited = asyncio.run(control.arun(model, Listed(*plan), prompts))
    assert [result.texts for result in alone] == [result.texts for result in awaited]
    assert [result.state.shape for result in alone] == [result.state.shape for result in together]
    assert meter.forwards <= 5
    sampler = samplers.multinomial(temperature=9.0)
    texts = [result.text for result in control.run(model, _eight, ["the"] * 3, sampler=sampler, rng=[4, 5, 6])]
    assert len(set(texts)) == 3
    assert texts == generate.regex(model, "[a-z]{8}", sampler=sampler)(["the"] * 3, rng=[4, 5, 6])


def test_the_error_of_one_of_several_programs_is_raised_when_all_have_ended() -> None:
    model = random_model()

    async def script() -> None:
        if control.shared.append("log", "x") == 2:
            raise ValueError("one of them")
        await control.gen(regex="[a-z]{8}")

    with pytest.raises(ValueError, match="one of them") as caught:
        control.run(model, script, ["the", "is", "name"], shared=control.Shared())
    assert caught.value.result.forks[0].error is caught.value
    results = control.run(model, script, ["the", "is", "name"], shared=control.Shared(), check=False)
    assert sorted(result.forks[0].finish_reason for result in results) == ["error", "stop", "stop"]
    assert sum(len(result.text) for result in results) == 16


async def _eight() -> None:
    await control.gen(regex="[a-z]{8}")


_BEFORE = [(0, False), (1, True), (3, False)]  # tokens that were written, after a state or a text
_REWINDS = [("llama", *before) for before in _BEFORE]
_REWINDS += [(family, *_BEFORE[at % 3]) for at, family in enumerate([*FAMILIES[1:], "recurrent"])]
_REWINDS += [(family, *before) for family in (*FAMILIES, "recurrent") for before in _BEFORE if (family, *before) not in _REWINDS]


@pytest.mark.parametrize(("family", "written", "is_state"), first(8, _REWINDS))
def test_a_controller_may_rewind_into_its_prompt(family: str, written: int, is_state: bool) -> None:
    is_recurrent = family == "recurrent"
    model = models.from_transformers(recurrent_network(), FakeTokenizer()) if is_recurrent else random_model(family)
    prompt = "the name is the"
    state = continuous(generate.choice(model, [" name is"]))(prompt) if is_state else prompt
    start = list(state.rows[0][0].token_ids) if isinstance(state, SequenceState) else ids_of(model, prompt)
    free = [Branch(sample_mask=TokenSet.of(ANY))]
    back = Branch(backtrack=written + 2, sample_mask=TokenSet.of(ANY))
    controller = Listed(*[free] * written, [back, back, Branch(backtrack=1 + written, ff_tokens=[[60, 61]])], *[free] * 3)

    result = control.run(model, controller, state)

    for fork in result.forks:
        ids = start[:-2] if fork.index < 2 else [*start[:-1], 60, 61]
        cut = len(start[:-2] if fork.index < 2 else start[:-1])
        while len(ids) < len(fork.state.rows[0][0].token_ids):
            ids = [*ids, best(model, ids, ANY)]
        row = fork.state.rows[0][0]
        assert ids == list(row.token_ids)
        assert fork.text == model.tokenizer.text_bytes(ids[cut:]).decode()
        drawn = cut if fork.index < 2 else cut + 2  # text in place of other text is given
        assert rescored(model, ids)[drawn:] == pytest.approx(row.logprobs[drawn:], abs=1e-5 if is_recurrent else 1e-9)
        after = continuous(generate.text(model))(fork.state, max_tokens=3).rows[0][0].token_ids
        for _ in range(3):
            ids = [*ids, best(model, ids, [i for i in range(model.vocab_size) if i not in model.eos_token_ids])]
        assert ids[: len(after)] == list(after)
    assert control.Replay.of(result.events).texts == {fork.index: fork.text for fork in result.forks}
    removed = [event for event in result.events if isinstance(event, control.Retract)]
    assert [event.num_prompt_tokens for event in removed] == [2, 2, 1]
    assert [written] * 3 == [event.num_tokens for event in removed]


def test_forks_have_controllers_and_random_numbers_of_their_own() -> None:
    model = random_model()

    class Counting(Controller):
        def __init__(self) -> None:
            self.seen: list[list[int]] = []

        def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
            self.seen.append(last_append)
            if len(self.seen) == 1:
                return [Branch(sample_mask=TokenSet.all)] * 4
            assert len(self.seen) - 1 == sum(map(len, self.seen))
            return [] if len(self.seen) == 7 else [Branch(sample_mask=TokenSet.all)]

    def run() -> list[str]:
        sampler = samplers.multinomial(temperature=20.0)
        return control.run(model, Counting(), "the", sampler=sampler, rng=5).check().texts

    texts = run()
    assert len(set(texts)) == 4
    assert texts == run()


def test_a_temperature_is_not_kept() -> None:
    model = random_model()
    masks = [Branch(sample_mask=TokenSet.all, temperature=t) for t in (0.0, None, 0.0, None)]
    ids = ids_of(model, "the")
    argmax = int(next_logits(model, ids)[-1].argmax())
    drawn = set()
    for seed in range(8):
        result = control.run(model, Listed(masks[:1], masks[1:2]), "the", sampler=samplers.multinomial(temperature=50.0), rng=seed)
        tokens = result.forks[0].state.rows[0][0].token_ids
        assert argmax == tokens[len(ids)]
        drawn.add(tokens[len(ids) + 1])
    assert len(drawn) > 4


def test_an_end_of_text_is_a_token_like_all_others() -> None:
    model = scripted_model(saying("ab"))
    controller = Listed(*[[Branch(sample_mask=TokenSet.all)]] * 3)
    result = control.run(model, controller, ">")
    letter = model.tokenizer.encode
    assert controller.calls[1:] == [(0, 0, letter("a")), (0, 0, letter("b")), (0, 0, [EOS])]
    assert result.text == "ab"


def test_a_waiting_fork_uses_no_forward_and_goes_on_later() -> None:
    model = random_model()
    free = [Branch(sample_mask=TokenSet.of(ANY))]
    waits = [Branch()]

    class Patient(Controller):
        def __init__(self) -> None:
            self.index, self.calls = 0, 0

        def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
            self.calls += 1
            if self.calls == 1:
                return [Branch(ff_tokens=[[40]]), Branch(ff_tokens=[[41]])]
            if self.calls == 2:
                self.index = last_append[0] - 40
            if self.index == 0:
                return free if self.calls <= 6 else []
            return waits if self.calls <= 4 else free if self.calls == 5 else []

    with model.meter() as meter:
        result = control.run(model, Patient(), "the").check()

    start = ids_of(model, "the")
    first = [*start, 40]
    for _ in range(5):
        first.append(best(model, first, ANY))
    second = [*start, 41]
    second.append(best(model, second, ANY))
    assert [first, second] == [list(fork.state.rows[0][0].token_ids) for fork in result.forks]
    # The prompt, the first token of both, five tokens of the first fork; the second fork's one goes with one of them.
    assert meter.forwards == 7
    assert meter.fed_tokens == len(start) + len(first) + len(second) - 2 * len(start)


def test_forks_that_all_wait_are_refused_within_one_round() -> None:
    controller = Listed([Branch(sample_mask=ONE)], [Branch(), Branch()], *[[Branch()]] * 9)
    result = control.run(random_model(), controller, "the", check=False)
    assert [fork.finish_reason for fork in result.forks] == ["deadlock", "deadlock"]
    assert isinstance(result.forks[0].error, DeadlockError)
    assert len(controller.calls) <= 3


def test_a_controller_that_raises_ends_its_fork_alone_and_its_kv_is_released() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    free = [Branch(sample_mask=TokenSet.of(ANY))]

    class Raising(Listed):
        def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
            if branch_index == 1:
                raise RuntimeError("broken controller")
            return super().mid_process(branch_index, last_backtrack, last_append)

    result = control.run(model, Raising(free, free * 2, free, free), "the name", check=False)
    good, bad = result.forks
    assert (good.finish_reason, good.error) == ("stop", None)
    assert (bad.finish_reason, str(bad.error)) == ("error", "broken controller")
    assert "raise RuntimeError" in bad.trace
    assert "in mid_process" in bad.trace
    assert good.trace == ""
    assert bad.state.rows[0][0].kv is None
    with pytest.raises(RuntimeError, match="broken controller"):
        result.check()
    del good
    result.forks[0].state = None
    gc.collect()
    assert model.kv_store.nbytes == 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "expected a list of `Branch`"),
        ([None], "expected a list of `Branch`"),
        ([Branch(backtrack=10**6)], "at most 1 tokens, all but the first of the prompt"),
        ([Branch(ff_tokens=[[10**6]])], "token ids from 0 to"),
        ([Branch(ff_tokens=[[-1]])], "token ids from 0 to"),
    ],
)
def test_what_a_controller_may_not_return_ends_its_fork_with_the_reason(answer: Any, message: str) -> None:
    (fork,) = control.run(random_model(), lambda branch, back, appended: answer, "the", check=False).forks
    assert isinstance(fork.error, ScriptError)
    assert message in str(fork.error)


@pytest.mark.parametrize("branch", [Branch(sample_mask=ONE), Branch(ff_tokens=[[40] * 9])])
def test_a_full_context_ends_a_fork(branch: Branch) -> None:
    model = random_model()
    assert model.context_length is not None
    prompt = "a" * (model.context_length - 5)
    (fork,) = control.run(model, lambda *_: [branch], prompt).forks
    assert (fork.finish_reason, fork.error) == ("length", None)
    assert fork.state.shape[-1] == model.context_length


@pytest.mark.parametrize("poison", ["raises", "nan", "schema"])
def test_one_poisoned_program_among_eight_leaves_the_others_as_they_are(poison: str) -> None:
    healthy = saying("abcdefgh", logit=3.0)
    marker = b"x>"

    def script(ids: list[int]) -> dict[int, float]:
        written = model.tokenizer.text_bytes(ids)
        if poison == "nan" and written.startswith(marker) and len(ids) > 5:
            return {5: float("nan")}
        return healthy(ids)

    model = scripted_model(script)
    sampler = samplers.multinomial(temperature=1.5)

    async def writes() -> None:
        await control.gen(max_tokens=6)
        await control.fixed("!")
        await control.gen(regex="[a-z]{3}", name="end")

    async def poisoned() -> None:
        await control.gen(max_tokens=2)
        if poison == "raises":
            raise ValueError("broken script")
        await control.gen(json={"type": 7}) if poison == "schema" else await control.gen(max_tokens=20)

    def run(last: Callable[[], Any], prompt: str) -> list[control.Fork]:
        programs = [control.start(model, writes, f"{i}>", sampler=sampler, rng=i) for i in range(7)]
        programs.append(control.start(model, last, prompt, sampler=sampler, rng=7))
        return [program.result().forks[0] for program in programs]

    without = run(writes, "7>")
    among = run(poisoned, "x>")
    assert [fork.text for fork in without[:7]] == [fork.text for fork in among[:7]]
    assert all(fork.error is None for fork in among[:7])
    assert among[7].finish_reason == "error"
    assert poison != "nan" or isinstance(among[7].error, InvalidLogits)


def test_controllers_scripts_and_generators_run_in_one_batch() -> None:
    model = random_model()
    text = continuous(generate.text(model))

    async def script() -> None:
        await control.gen(max_tokens=6)

    async def main() -> tuple[Any, ...]:
        return await asyncio.gather(
            control.arun(model, Listed(*[[Branch(sample_mask=TokenSet.of(ANY))]] * 6), "the"),
            control.arun(model, script, "the"),
            text.acall("the", max_tokens=6),
        )

    with model.meter() as meter:
        controlled, scripted, state = asyncio.run(main())
    ids = ids_of(model, "the")
    for _ in range(6):
        ids.append(best(model, ids, ANY))
    assert ids == list(controlled.forks[0].state.rows[0][0].token_ids)
    assert state.rows[0][0].token_ids == scripted.forks[0].state.rows[0][0].token_ids
    # Seven by the controller, whose last token was fed while it said stop; nobody else needs one of their own.
    assert meter.forwards <= 9


def test_a_callback_runs_while_its_tokens_are_being_fed() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    together = threading.Barrier(2, timeout=20)
    forward = model.forward

    def slow_forward(*arguments: Any) -> torch.Tensor:
        together.wait()
        return forward(*arguments)

    assert model.can_stack  # probed by forwards of its own
    assert model.can_branch
    model.forward = slow_forward  # type: ignore[method-assign]
    calls: list[list[int]] = []

    def controller(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        # Passes only when a forward has begun, and that one goes on only when this call has begun.
        together.wait()
        calls.append(last_append)
        return [Branch(sample_mask=TokenSet.of(ANY))] if len(calls) <= 10 else []

    result = control.run(model, controller, "the").check()
    assert len(calls) == 11
    assert [token_id for call in calls for token_id in call] == list(result.forks[0].state.rows[0][0].token_ids[2:])


def test_a_slow_controller_holds_up_nobody_else() -> None:
    model = random_model()
    go_on = threading.Event()

    def slow(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        assert go_on.wait(20)
        return []

    program = control.start(model, slow, "the")
    # It ends in steps that ask the slow one, too.
    assert generate.text(model)("the", max_tokens=5)
    assert not program.is_over
    go_on.set()
    assert program.result().forks[0].finish_reason == "stop"


def test_no_thread_is_left_behind() -> None:
    model = random_model()
    before = threading.active_count()
    for _ in range(30):
        control.run(model, Listed([Branch(sample_mask=ONE)]), "the")
    deadline = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_program_that_is_cancelled_lets_its_rows_go() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())

    def endless(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
        return [Branch(sample_mask=TokenSet.of(ANY))]

    program = control.start(model, endless, "the")
    events = program.events()
    assert isinstance(next(events), Append)
    events.close()
    assert program.is_over
    result = program.result()
    assert [fork.finish_reason for fork in result.forks] == ["cancelled"]
    del result, program, events
    gc.collect()
    assert model.kv_store.nbytes == 0


def test_events_can_be_read_while_the_program_runs() -> None:
    model = random_model()
    controller = Listed([Branch(sample_mask=TokenSet.of(ANY))] * 2, [Branch(sample_mask=ONE)], [Branch(backtrack=1)])
    program = control.start(model, controller, "the")
    replay, texts = Replay(), []
    for event in program.events():
        replay.push(event)
        texts.append(replay.texts[0])
    result = program.result()
    assert result.texts == [replay.texts[fork.index] for fork in result.forks]
    assert {fork.index: fork.finish_reason for fork in result.forks} == replay.finished
    assert len(set(texts)) > 2

    async def read() -> list[Any]:
        return [event async for event in control.start(model, Listed([Branch(sample_mask=ONE)]), "the").aevents()]

    assert len(asyncio.run(read())) == 2


def test_a_state_is_continued_without_feeding_it_again() -> None:
    model = random_model()
    state = continuous(generate.text(model))("the name of", max_tokens=4)
    with model.meter() as meter:
        result = control.run(model, Listed([Branch(ff_tokens=[[40, 41]])]), state).check()
    assert (*state.rows[0][0].token_ids, 40, 41) == result.state.rows[0][0].token_ids
    assert meter.fed_tokens <= 3
    assert result.usage.forced_tokens == 2
    assert result.usage.reused_tokens == state.rows[0][0].cached
    assert str(continuous(generate.text(model))(result.state, max_tokens=2)).startswith(str(state))


def test_what_cannot_be_run_is_refused_before_anything_runs() -> None:
    model = random_model()
    with pytest.raises(OptionError, match="expected a `Controller`"):
        control.run(model, Listed, "the")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="a program searches by forks"):
        control.run(model, Listed(), "the", sampler=samplers.beam_search(2))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="one prompt"):
        control.start(model, Listed(), ["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(SampleMismatch):
        control.run(model, Listed(), continuous(generate.text(model))("the", max_tokens=2).fork(2))
    with pytest.raises(PromptTypeError):
        control.run(model, Listed(), 3)  # type: ignore[arg-type]


def test_a_controller_may_hold_what_never_changes() -> None:
    model = random_model()
    expression = fsm.regex("[a-c]{2}")
    constraint = Constraint.of_model(model, expression)

    class Holding(Controller):
        def __init__(self) -> None:
            self.held = [model, expression, constraint, constraint.token_fsm, control.Shared()]
            self.state = constraint.token_fsm.initial_state

        def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
            for token_id in last_append:
                self.state = constraint.token_fsm.next_state(self.state, token_id)
            if not last_append:
                held.extend(self.held)
                return [Branch(sample_mask=self._mask()), Branch(sample_mask=self._mask(), temperature=9.0)]
            held.extend(self.held)
            return [Branch(sample_mask=self._mask())] if not constraint.token_fsm.is_accepting(self.state) else []

        def _mask(self) -> TokenSet:
            return TokenSet.of_bitmask(constraint.token_fsm.bitmask(self.state))

    held: list[Any] = []
    result = control.run(model, Holding(), "the", rng=1).check()
    assert all(expression.accepts(text) for text in result.texts)
    assert len({id(value) for value in held}) == 5


def test_a_controller_that_cannot_be_copied_says_what_to_do() -> None:
    class Locked(Controller):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def mid_process(self, branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
            return [Branch(sample_mask=ONE)] * 2

    (fork,) = control.run(random_model(), Locked(), "the", check=False).forks
    assert isinstance(fork.error, ScriptError)
    assert "Override its method `fork`" in str(fork.error)
