"""A step that is interrupted, at whatever line, never was: what every row writes is what it writes undisturbed."""

from __future__ import annotations

import gc
import linecache
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import outlines_cont
from outlines_cont import Engine, Guidance, SequenceState, continuous, control, engine_of, generate, models, policies, samplers
from outlines_cont.control import Branch, Replay, TokenSet, fixed, fork, gen, shared
from outlines_cont.generation.call import Call
from outlines_cont.generation.options import Options
from outlines_cont.models import HuggingFaceModel
from outlines_cont.sampling.random_stream import RandomStream
from tests.fakes import FakeTokenizer, random_model, random_network

_FOLDER = str(Path(outlines_cont.__file__).parent)


class _Interrupt:
    """Raises `KeyboardInterrupt` before line number `at` of our code that runs in the body; counts the lines."""

    def __init__(self, at: int, only: str = "") -> None:
        """`only`: the beginning of the qualified names of the functions whose lines count."""
        self.left, self.only = at, only

    def __enter__(self) -> _Interrupt:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        is_ours = frame.f_code.co_filename.startswith(_FOLDER) and frame.f_code.co_qualname.startswith(self.only)
        return self._line if is_ours else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        # Between a body and the end of its `with` an exception of a trace function leaves a lock held; a signal does not.
        if event == "line" and not _is_with(frame.f_code.co_filename, frame.f_lineno):
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)  # as Ctrl-C does it
        return self._line


def _is_with(path: str, line: int) -> bool:
    return linecache.getline(path, line).lstrip().startswith(("with ", "async with "))


def _interrupted_everywhere(engine: Engine, is_over: Callable[[], bool], stride: int) -> int:
    """Take steps until all is over, each of them again and again: interrupted a few lines later every time, and at last not."""
    interrupts, step = 0, 0
    while not is_over():
        at = 1 + step % stride
        while True:
            try:
                with _Interrupt(at):
                    engine.step()
            except KeyboardInterrupt:
                interrupts += 1
                at += stride
            else:
                break
        step += 1
    return interrupts


def _runs(model: HuggingFaceModel) -> list[Call]:
    draw = samplers.multinomial(2, top_p=0.9, temperature=2.0, frequency_penalty=0.3)
    beams = samplers.beam_search(3)
    made = [
        (generate.text(model, sampler=draw), "the name", {"max_tokens": 4, "stop_at": "e", "rng": 1,
                                                               "draft": "lookup"}),
        (generate.regex(model, "[ab]{1,3}(red|green)12?", sampler=samplers.multinomial()), "yes", {"rng": 2}),
        (generate.json(model, {"type": "array", "prefixItems": [{"enum": [1, 12]}], "items": {"enum": [1, 12]}, "minItems": 2,
                               "maxItems": 2, "uniqueItems": True}, sampler=samplers.multinomial(temperature=3.0)), "no",
         {"rng": 3, "draft": random_model()}),
        (generate.regex(model, "[a-d]{2,4} is", sampler=samplers.multinomial()), "no",
         {"rng": 5, "guidance": Guidance("yes", 2), "draft": random_model(),
          "policies": (policies.ban(["ab", "ca", "dd"], max_retries=200),)}),
        (generate.choice(model, ["yes", "no", "an"], sampler=beams, force=False), "a", {"rng": 4}),
        (generate.text(model, sampler=draw), ["is it th", 'a "'], {"max_tokens": 3, "heal": True, "rng": 6}),
        (generate.choice(model, ["e", "en", "is"], sampler=beams), "is it th", {"heal": True, "rng": 7}),
    ]  # fmt: skip
    return [
        Call(maker, prompt, Options.of({name: value for name, value in options.items() if name != "rng"}), rng=options["rng"])
        for maker, prompt, options in made
    ]


def _written(state: SequenceState) -> list[Any]:
    rows = [row for group in state.rows for row in group]
    assert all(row.error is None for row in rows)
    assert [len({row.stream for row in group}) for group in state.rows] == [*map(len, state.rows)]
    return [(row.token_ids, row.kinds, row.finish_reason, row.stream, row.value, row.piece) for row in rows]


def _scores(state: SequenceState) -> list[float]:
    return [score for group in state.rows for row in group for score in (*row.logprobs, *row.sampling_logprobs, row.score)]


# A step has some 2,000 lines here. By default every 397th of a step is tried, others in the next one.
_STRIDES = [pytest.param(1, marks=pytest.mark.slow), 397]


@pytest.mark.parametrize("stride", _STRIDES)
def test_a_generator_that_is_interrupted_at_every_line_writes_what_it_writes(stride: int) -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    model.prefix_cache.min_tokens = 2  # so that the runs read what others have read, and wait for each other
    wanted = []
    for run in _runs(model):
        wanted.append(run.finished_state())
    runs = _runs(model)
    jobs = [run._make_job() for run in runs]
    for job in jobs:
        engine_of(model).submit(job)
    count = _interrupted_everywhere(engine_of(model), lambda: all(job.is_over for job in jobs), stride)
    assert count > 4_000 / stride
    for run, expected in zip(runs, wanted, strict=True):
        run.collect()
        found = run.state()
        assert _written(expected) == _written(found)
        assert _scores(expected) == pytest.approx(_scores(found), abs=1e-9)
    assert engine_of(model).num_running == 0
    assert model.prefix_cache.hits
    del run, job, expected, found
    for held in (runs, jobs, wanted):
        held.clear()
    gc.collect()
    assert model.kv_store.nbytes == model.prefix_cache.nbytes


@pytest.mark.parametrize("num_before", [0, 1, 40, 200])
def test_a_stream_that_is_interrupted_at_any_line_has_the_same_numbers(num_before: int) -> None:
    wanted = [RandomStream(7).open().peek(i) for i in range(num_before, num_before + 300)]
    for at in range(1, 40):
        stream = RandomStream(7).open()
        found = [stream.peek(i) for i in range(num_before)]
        with suppress(KeyboardInterrupt), _Interrupt(at, only="_Numbers"):
            found = [stream.peek(i) for i in range(num_before, num_before + 300)]
        found = [stream.peek(i) for i in range(num_before, num_before + 300)]
        assert wanted == found


async def _script() -> None:
    word = await gen(choice=["red", "green", "of"], name="word")
    index = await fork(2)
    shared.append("words", f"{word}{index}")
    await fixed(" of ")
    await gen(regex="[a-d]{2,3}", name="more")


def _controller(branch_index: int, last_backtrack: int, last_append: list[int]) -> list[Branch]:
    if not last_append:
        return [Branch(sample_mask=TokenSet.of(range(65, 91)))]
    if len(last_append) > 1:
        return []
    if last_append[0] < 80:
        return [Branch(sample_mask=TokenSet.of(range(97, 110))), Branch(ff_tokens=[[80, 81]])]
    return [Branch(backtrack=1, ff_tokens=[[70, 71]])]


@pytest.mark.parametrize("stride", _STRIDES)
def test_a_program_that_is_interrupted_at_every_line_writes_what_it_writes(stride: int) -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())

    model.prefix_cache.min_tokens = 2

    def begun() -> list[control.Program]:
        draw = samplers.multinomial(temperature=3.0)
        return [
            control.start(model, program, prompt, sampler=draw, rng=seed)
            for program, prompt, seed in ((_script, "the", 0), (_controller, "a", 1), (_controller, "is", 2))
        ]

    wanted = [program.result() for program in begun()]
    programs = begun()
    count = _interrupted_everywhere(engine_of(model), lambda: all(program.is_over for program in programs), stride)
    assert count > 1_000 / stride
    for program, expected in zip(programs, wanted, strict=True):
        found = program.result().check()
        assert [(f.text, f.finish_reason, f.captures, f.parent) for f in expected.forks] == [
            (f.text, f.finish_reason, f.captures, f.parent) for f in found.forks
        ]
        assert expected.shared == found.shared
        assert Replay(found.events).texts == dict(enumerate(found.texts))


def test_an_engine_steps_on_after_an_interrupt_of_its_recovery_itself() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    write = continuous(generate.text(model))
    wanted, count, at = write("the name", max_tokens=3), 0, 0
    while at <= count:
        at += 1
        with suppress(KeyboardInterrupt), _Interrupt(at, "Recovery."):
            write("the name", max_tokens=3)
            break
        count += 1
        # The interrupt that rolls a step back is interrupted itself, too.
        for inner in range(1, 9):
            with suppress(KeyboardInterrupt), _Interrupt(inner, "Recovery."):
                write("a", max_tokens=2)
        assert write("the name", max_tokens=3) == wanted, at
    assert count > 20
    assert engine_of(model).num_running == 0


def test_a_call_that_is_interrupted_lets_its_own_rows_go_and_no_others() -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    draw = continuous(generate.text(model, sampler=samplers.multinomial()))
    wanted = [list(draw("the name", max_tokens=6, rng=seed)) for seed in range(4)]
    streams = [generate.text(model, sampler=samplers.multinomial()).stream("the name", max_tokens=6, rng=seed) for seed in range(4)]
    texts = [next(stream) for stream in streams]
    for at in range(1, 2000, 131):
        try:
            with _Interrupt(at):
                draw("no", max_tokens=6, rng=9)
        except KeyboardInterrupt:
            pass
    found = ["the name" + text + "".join(stream) for text, stream in zip(texts, streams, strict=True)]
    assert wanted == [[text] for text in found]
    assert engine_of(model).num_running == 0
