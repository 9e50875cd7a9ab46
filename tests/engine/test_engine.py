"""The engine: many calls at once, from threads and tasks, with errors, cancelling and little room."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outlines_cont import Engine, SequenceState, continuous, engine_of, generate, samplers
from outlines_cont.engine.job import Job, Step
from outlines_cont.engine.prefill_row import PrefillRow
from outlines_cont.errors import KVBudgetError, OptionError, OutlinesContError
from outlines_cont.models import HuggingFaceModel, Meter, from_transformers
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow
from tests import rows
from tests.examples import examples
from tests.fakes import FakeTokenizer, random_model, random_network, saying, scripted_model
from tests.oracle import greedy_ids, next_logits

TEXTS = ["the name", "a", "of the rose", "yes no yes", "red", "日本"]


def job_of(model: HuggingFaceModel, text: str, *, max_tokens: int = 6, sampler: Any = None) -> Job:
    """One row of free text."""
    return rows.job_of(model, model.tokenizer.encode(text, add_special_tokens=True), max_tokens=max_tokens, sampler=sampler)


def run(engine: Engine, *jobs: Job) -> list[StateRow]:
    for job in jobs:
        engine.advance(job)
        while not job.is_over:
            engine.advance(job)
    return [job.done[0] for job in jobs]


def expected(model: HuggingFaceModel, text: str, count: int = 6) -> list[int]:
    return greedy_ids(model, model.tokenizer.encode(text, add_special_tokens=True), count)


def written(row: StateRow) -> list[int]:
    assert row.error is None, row.error
    return list(row.token_ids[row.piece.start :]) if row.piece else []


def test_a_long_prompt_does_not_hold_up_those_that_write() -> None:
    model = random_model()
    engine = Engine(model, max_batch_tokens=4)
    short, long = job_of(model, "a", max_tokens=5), job_of(model, "the name of the rose " * 4)
    engine.submit(short)
    engine.step()
    engine.submit(long)
    run(engine, short)
    assert not long.is_over
    assert not long.rows[0].is_ready
    assert expected(model, "the name of the rose " * 4) == written(run(engine, long)[0])


@pytest.mark.parametrize("max_rows", [1, 2, 5])
def test_rows_beyond_the_limit_wait_and_are_admitted_in_order(max_rows: int) -> None:
    model = random_model()
    engine = Engine(model, max_rows=max_rows)
    texts = [f"{digit}x" for digit in range(6)]  # equally long, so that who comes first ends first
    jobs = [job_of(model, text) for text in texts]
    for job in jobs:
        engine.submit(job)
    over: list[int] = []
    while len(over) < len(jobs):
        engine.step()
        assert engine.num_running <= max_rows
        over += [i for i, job in enumerate(jobs) if job.is_over and i not in over]
    assert sorted(over) == over
    for text, job in zip(texts, jobs, strict=True):
        assert expected(model, text) == written(job.done[0])


def submitted(engine: Engine, jobs: list[Job]) -> list[Job]:
    for job in jobs:
        engine.submit(job)
    return jobs


def poisoned(model: HuggingFaceModel, is_bad: Callable[[torch.Tensor], bool], act: Callable[[], None]) -> None:
    """Let forwards with a row of bad ids fail."""
    forward = model.forward

    def checked(input_ids: torch.Tensor, *arguments: Any) -> torch.Tensor:
        if is_bad(input_ids):
            act()
        return forward(input_ids, *arguments)

    model.forward = checked  # type: ignore[method-assign]


def test_a_row_that_breaks_the_forward_fails_alone() -> None:
    model = random_model("llama")
    bad = model.tokenizer.encode("red")[0]

    def act() -> None:
        raise RuntimeError("poison")

    poisoned(model, lambda ids: bool((ids == bad).any()), act)
    try:
        engine = Engine(model)
        texts = [text for text in TEXTS if text != "red"]
        fine = [job_of(model, text) for text in texts]
        wrong = job_of(model, "red")
        run(engine, *submitted(engine, [*fine[:3], wrong, *fine[3:]]))
    finally:
        del model.forward
    assert isinstance(wrong.done[0].error, RuntimeError)
    for text, job in zip(texts, fine, strict=True):
        assert expected(model, text) == written(job.done[0])


def test_a_cancelled_call_lets_its_rows_go_at_once() -> None:
    model = from_transformers(random_network("llama"), FakeTokenizer())
    stream = generate.text(model).stream("the name", max_tokens=50)
    next(stream)
    engine = engine_of(model)
    assert engine.num_running == 1
    stream.close()  # type: ignore[attr-defined]
    assert engine.num_running == 0
    gc.collect()
    assert model.kv_store.nbytes == 0
    assert continuous(generate.text(model))("a", max_tokens=3).shape[:2] == (1, 1)


def _second(model: HuggingFaceModel, text: str) -> list[int]:
    """The second token that a model writes."""
    return [int(continuous(generate.text(model))(text, max_tokens=2).token_ids[0, 0, -1])]


def test_a_cancelled_call_holds_no_row_that_had_ended() -> None:
    model = from_transformers(random_network("llama"), FakeTokenizer())
    with model.meter() as meter:
        stream = generate.text(model).stream(TEXTS, max_tokens=50, stop_token_ids=_second(model, TEXTS[0]))
        while engine_of(model).num_running != len(TEXTS) - 1:
            next(stream)
        stream.close()  # type: ignore[attr-defined]
        del stream
        gc.collect()
        assert (engine_of(model).num_running, model.kv_store.nbytes) == (0, 0)
    assert meter.sampled_tokens == engine_of(model).stats.work.sampled_tokens > 0


def test_a_call_that_is_cancelled_while_another_thread_reads_lets_its_rows_go() -> None:
    model = random_model("llama")
    stream = generate.text(model).stream("the name", max_tokens=50)
    next(stream)
    engine = engine_of(model)
    with engine.lock:  # as a snapshot of another call has it
        closing = threading.Thread(target=stream.close)  # type: ignore[attr-defined]
        closing.start()
        closing.join(0.2)
    closing.join(60)
    assert engine.num_running == 0


def test_tasks_share_the_steps_and_streams_are_whole() -> None:
    model = random_model("llama")
    generator = generate.text(model)
    alone = [generator(text, max_tokens=9) for text in TEXTS]

    async def streamed(text: str) -> str:
        return "".join([part async for part in generator.astream(text, max_tokens=9)])

    async def main() -> tuple[list[str], list[str]]:
        calls = [generator.acall(text, max_tokens=9) for text in TEXTS]
        return await asyncio.gather(*calls), await asyncio.gather(*map(streamed, TEXTS))

    with model.meter() as meter:
        called, streams = asyncio.run(main())
    assert alone == called == streams
    # One forward per step for all tasks, not one per task.
    assert meter.forwards < 2 * 9 * len(TEXTS) / 2


def test_a_task_that_is_cancelled_again_while_no_thread_is_free_frees_its_rows() -> None:
    model = random_model("llama")
    generator = continuous(generate.text(model))
    engine, gate = engine_of(model), threading.Event()

    async def main() -> BaseException:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as executor:
            loop.set_default_executor(executor)
            task = asyncio.create_task(generator.acall("the name of", max_tokens=200))
            while engine.num_running == 0:
                await asyncio.sleep(0.001)
            blocked = loop.run_in_executor(None, gate.wait)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0.01)
            gate.set()
            await blocked
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            await asyncio.to_thread(int)  # what was asked of the thread before is done
        return caught.value

    error = asyncio.run(main())  # its traceback refers to the call, so that nothing closes it but what is tested
    assert engine.num_running == 0
    assert error.__traceback__ is not None


def budgeted(tokens: int) -> HuggingFaceModel:
    network = random_network("llama")
    config = network.config
    width = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    per_token = 2 * config.num_hidden_layers * width * network.dtype.itemsize
    return from_transformers(network, FakeTokenizer(), kv_budget_bytes=tokens * per_token)


def test_rows_wait_for_room_only_while_others_run() -> None:
    model = budgeted(140)
    engine = Engine(model)
    jobs = submitted(engine, [job_of(model, "the name of the rose " * 3, max_tokens=4) for _ in range(6)])
    rooms = []
    while not all(job.is_over for job in jobs):
        engine.step()
        rooms.append(engine._scheduler.room)
        assert engine.num_running <= (rooms[-1] or 6)
    assert any(rooms)
    assert rooms[-1] is None
    submitted(engine, [job_of(model, "a", max_tokens=4) for _ in range(6)])
    engine.step()
    assert engine.num_running == 6


_WORDS = st.text("the nameofrs ", min_size=1, max_size=60)


@settings(max_examples=examples(5))
@given(
    prompts=st.lists(_WORDS, min_size=1, max_size=3),
    first=st.sampled_from([0, 0, 1, 20]),
    samples=st.integers(1, 3),
    cache=st.sampled_from([0, 1 << 20]),
    tokens=st.lists(st.integers(1, 160), min_size=3, max_size=3).map(sorted),
)
def test_a_row_fails_only_if_its_own_tokens_need_more_than_the_budget(
    prompts: list[str], first: int, samples: int, cache: int, tokens: list[int]
) -> None:
    """So a call that fits a budget fits every larger one, with the same texts, whatever states and other rows there are."""

    def run(budget: int | None) -> SequenceState | None:
        model = from_transformers(random_network("llama"), FakeTokenizer(), prefix_cache_bytes=cache)
        write = continuous(generate.text(model, sampler=samplers.multinomial(samples)))
        start = write(prompts, max_tokens=first, rng=1) if first else prompts
        layout = [layer for layer in model.kv_layout if layer is not None]
        per_token = sum(tensor.shape[0] * tensor.shape[2] * tensor.itemsize for layer in layout for tensor in layer)
        model.kv_store.budget_bytes = None if budget is None else budget * per_token
        try:
            return write(start, max_tokens=5, rng=2)
        except KVBudgetError:  # a prompt of several samples, which is fed before them
            assert samples > 1
            assert not first
            return None

    free = run(None)
    assert free is not None
    lengths = [len(row.token_ids) for group in free.rows for row in group]
    has_fitted = [False] * len(lengths)
    for budget in tokens:
        state = run(budget)
        if state is None:
            assert budget < max(lengths)
            assert not all(has_fitted)
            continue
        for at, row in enumerate(row for group in state.rows for row in group):
            assert isinstance(row.error, KVBudgetError | None)
            assert row.error is None or (budget < lengths[at] and not has_fitted[at])
            has_fitted[at] = row.error is None
            assert row.error or row.token_ids == free.rows[at // samples][at % samples].token_ids


def test_an_error_of_a_row_holds_no_keys_and_values() -> None:
    model = budgeted(60)
    state = continuous(generate.text(model))("the name of the rose " * 25, max_tokens=4)
    assert isinstance(state.errors[0][0], OutlinesContError)
    assert model.kv_store.nbytes == 0


def test_stats_add_up() -> None:
    model = random_model("llama")
    engine = Engine(model)
    jobs = submitted(engine, [job_of(model, text, max_tokens=5) for text in TEXTS])
    with model.meter() as meter:
        run(engine, *jobs)
    stats = engine.stats
    assert meter.forwards == stats.work.forwards
    assert meter.sampled_tokens == stats.work.sampled_tokens == 5 * len(TEXTS)
    assert 0 < stats.forward_seconds <= stats.seconds
    assert 0 < stats.rows_per_step <= len(TEXTS)
    assert stats.python_seconds + stats.forward_seconds <= stats.seconds
    assert "forwards" in str(stats)


def test_rows_that_only_read_share_forwards_with_those_that_write() -> None:
    model = from_transformers(random_network("llama"), FakeTokenizer())
    engine = engine_of(model)
    counts = Meter()
    rows = [StateRow.of_prompt(model.tokenizer.encode(text), RandomStream(0)) for text in TEXTS[:3]]
    reading = Job([PrefillRow(row, model, counts=counts, indices=[len(row.token_ids) - 1]) for row in rows], counts)
    writing = job_of(model, "of the rose")
    engine.submit(reading)
    engine.submit(writing)
    before = engine.stats.work.forwards
    while not (reading.is_over and writing.is_over):
        engine.step()
    # Six steps of the row that writes; the texts of four lengths are read in as many parts at most, one of which is the first step.
    assert engine.stats.work.forwards - before <= 9
    assert written(writing.done[0]) == expected(model, "of the rose")
    for text, (_, row) in zip(TEXTS, sorted(reading.done.items()), strict=False):
        logits = next_logits(model, model.tokenizer.encode(text))[-1]
        assert row.logits is not None
        torch.testing.assert_close(row.logits, logits, atol=1e-8, rtol=0)
        assert row.cached == len(row.token_ids)


def test_a_row_that_has_ended_is_not_lost_when_its_neighbour_is_cancelled() -> None:
    model = scripted_model(saying("ab"))
    engine = Engine(model)
    ends, goes_on = job_of(model, "x>"), job_of(model, "y", max_tokens=50)
    engine.submit(ends)
    engine.submit(goes_on)
    (row,) = ends.rows
    while not row.has_ended:
        engine.step()
    assert not ends.is_over  # it leaves with the next step
    engine.cancel(goes_on)
    run(engine, ends)
    assert model.tokenizer.decode(ends.done[0].token_ids) == "x>ab"


def test_a_stream_has_all_of_its_text_whoever_takes_the_steps() -> None:
    model = random_model()
    write = generate.text(model)
    whole = write("the", max_tokens=5)
    stream = write.stream("the", max_tokens=5)
    first = next(stream)
    write("a", max_tokens=9)  # its steps are those of the stream, too
    assert whole == first + "".join(stream)

    async def main() -> str:
        texts = write.astream("the", max_tokens=5)
        text = await anext(texts)
        await write.acall("a", max_tokens=9)
        return text + "".join([more async for more in texts])

    assert whole == asyncio.run(main())


@pytest.mark.parametrize("value", ["a", None, 0, -1, True, 2.0])
@pytest.mark.parametrize("name", ["max_rows", "max_batch_tokens"])
def test_a_limit_is_checked_whenever_it_is_set(name: str, value: object) -> None:
    engine = Engine(random_model())
    with pytest.raises(OptionError, match=f"`{name}`"):
        Engine(random_model(), **{name: value})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=f"`{name}`"):
        setattr(engine, name, value)
    setattr(engine, name, 7)
    assert getattr(engine, name) == 7
    assert f"{name}=7" in repr(engine)


def test_a_misspelt_limit_and_what_is_no_model_are_refused() -> None:
    with pytest.raises(AttributeError, match="max_row"):
        Engine(random_model()).max_row = 3  # type: ignore[attr-defined]
    with pytest.raises(OptionError, match="got str"):
        engine_of("x")  # type: ignore[arg-type]


def test_what_was_done_between_two_copies_is_their_difference() -> None:
    model = random_model()
    engine = Engine(model)
    run(engine, *submitted(engine, [job_of(model, "a")]))
    before = engine.stats
    assert (engine.stats - before).steps == 0
    run(engine, *submitted(engine, [job_of(model, "the name", max_tokens=3)]))
    done = engine.stats - before
    assert (engine.stats.steps - before.steps, 3) == (done.steps, done.work.sampled_tokens)
    assert done.seconds >= done.forward_seconds > 0
    with pytest.raises(TypeError):
        done - 1  # type: ignore[operator]
    with pytest.raises(TypeError):
        done.work - 1  # type: ignore[operator]


def test_a_step_that_draws_without_a_forward_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("llama")
    state = continuous(generate.text(model))("the name of", max_tokens=1)
    assert state.logits.isfinite().any()
    engine, waits = engine_of(model), []
    monkeypatch.setattr(threading.Event, "wait", lambda event, timeout=None: waits.append(event is engine._answer))
    with model.meter() as meter:
        assert continuous(generate.text(model))(state, max_tokens=1).token_ids.shape[-1] > state.token_ids.shape[-1]
    assert (meter.forwards, True in waits) == (0, False)


@pytest.mark.timeout(60)
def test_an_error_of_reading_what_a_step_has_changed_is_that_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of one loop wait for the same steps, and what these have changed is read for all of them before the next one."""
    model = random_model("llama")
    alone, note, noted = str(generate.text(model)("ab", max_tokens=6)), Step.note, list[Step]()

    def failing(step: Step) -> None:
        noted.append(step)
        note(step)
        if step is not noted[0] and step.found:
            raise ZeroDivisionError

    async def text(prompt: str) -> str:
        return "".join([part async for part in generate.text(model).astream(prompt, max_tokens=6)])

    async def main() -> list[Any]:
        return await asyncio.gather(text("ab"), text("b"), return_exceptions=True)

    monkeypatch.setattr(Step, "note", failing)
    found = asyncio.run(main())
    assert found[0] == alone
    assert isinstance(found[1], ZeroDivisionError)
    assert engine_of(model).num_running == 0


@pytest.mark.timeout(60)
def test_a_task_that_begins_as_a_step_ends_takes_the_next_one() -> None:
    model = random_model("llama")
    generator = continuous(generate.text(model))

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        done.set_result(None)
        engine_of(model)._steps[loop] = done, []
        state = await generator.acall("a", max_tokens=5)
        return list(state.rows[0][0].token_ids)

    assert list(generator("a", max_tokens=5).rows[0][0].token_ids) == asyncio.run(main())
