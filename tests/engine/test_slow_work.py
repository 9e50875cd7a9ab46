"""Work of policies that takes too long for a step: a thread does it, other rows go on, and texts are the same."""

from __future__ import annotations

import gc
import threading
from functools import partial
from typing import Any

import pytest

import fsm
from fsm import BudgetExceeded
from fsm.terms import work
from outlines_cont import continuous, engine_of, generate, policies, samplers
from outlines_cont.models import from_transformers
from outlines_cont.policies import slow_work
from outlines_cont.policies.slow_work import JobBound, SlowWork, TooLong, bounded
from tests.examples import first
from tests.fakes import FakeTokenizer, random_network

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "tags": {"type": "array", "prefixItems": [{"enum": ["a", "b"]}], "items": {"enum": ["a", "b"]}, "uniqueItems": True},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
PATTERNS = ["[a-z]{3,9}-[0-9]{2,4}", "(?=.*a.{4})(?=.*b.{5}).{6,20}", "(ab|cd|[0-9]x){2,6}!"]


def _written(seed: int) -> list[Any]:
    """What calls of several kinds write with a model that has no masks yet."""
    model = from_transformers(random_network("llama"), FakeTokenizer())
    drawn, pattern = samplers.multinomial(temperature=1.5), PATTERNS[seed % 3]
    states = [
        continuous(generate.json(model, SCHEMA, sampler=drawn))(["one ", "the two"], rng=seed, max_tokens=40),
        continuous(generate.regex(model, pattern, sampler=drawn))(["x", "yes no"], rng=seed, max_tokens=20, draft="lookup"),
        continuous(generate.regex(model, pattern, sampler=samplers.beam_search(3)))("x", max_tokens=8),
        continuous(generate.regex(model, pattern, sampler=drawn, end="free"))("a", rng=seed, max_tokens=20),
        continuous(generate.regex(model, pattern, sampler=drawn))("a", rng=seed, max_tokens=20, policies=[policies.ban(["e", "1"])]),
    ]
    return [[state.token_ids.tolist(), state.finish_reasons, [[str(one) for one in row] for row in state.errors]] for state in states]


@pytest.mark.parametrize("seed", first(1, range(3)))
def test_what_is_written_does_not_depend_on_where_masks_are_made(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    expected, begun = _written(seed), list[SlowWork]()
    init = SlowWork.__init__

    def counted(self: SlowWork, *arguments: Any) -> None:
        begun.append(self)
        init(self, *arguments)

    monkeypatch.setattr(SlowWork, "__init__", counted)
    monkeypatch.setattr(slow_work, "MAX_STEP_WORK", 0)
    monkeypatch.setattr(slow_work, "LEAST_ROW_WORK", seed)
    monkeypatch.setattr(slow_work._Step, "left", 0)
    assert expected == _written(seed)
    assert begun


def heavy_masks(monkeypatch: pytest.MonkeyPatch, source: str, wait: Any) -> None:
    """Let the masks of one pattern take more work than a step has, and call `wait` where a thread makes them."""
    bitmask = fsm.TokenFSM.bitmask

    def slow(token_fsm: fsm.TokenFSM, state: int) -> Any:
        if source in repr(token_fsm.expression) and token_fsm._make_key(state) not in token_fsm.vocabulary.masks:
            work.add(slow_work.MAX_STEP_WORK + 1)
            work.check()
            wait()
        return bitmask(token_fsm, state)

    monkeypatch.setattr(fsm.TokenFSM, "bitmask", slow)


@pytest.mark.parametrize("source", ["[n-z]{4}", "[n-z]*"])  # the text may not end, and may end, where the mask is made
def test_others_go_on_while_a_mask_is_made(monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    drawn = samplers.multinomial()
    alone = continuous(generate.regex(from_transformers(random_network("llama"), FakeTokenizer()), source, sampler=drawn))(
        "x", rng=1, max_tokens=4
    )
    model = from_transformers(random_network("llama"), FakeTokenizer())
    heavy, other = generate.regex(model, source, sampler=drawn), generate.regex(model, "[a-m]{60}", sampler=drawn)
    engine, waited, stop = engine_of(model), list[int](), threading.Event()

    def wait() -> None:
        assert threading.current_thread().name == "outlines-cont-masks"
        goal = engine._stats.work.sampled_tokens + 5  # of the other row; without the lock, which a thread that takes steps hardly lets go
        while engine._stats.work.sampled_tokens < goal:
            assert not stop.wait(0.001)
        waited.append(goal)

    heavy_masks(monkeypatch, source, wait)
    found: list[Any] = []
    asking = threading.Thread(target=lambda: found.append(continuous(heavy)("x", rng=1, max_tokens=4)))
    asking.start()
    try:
        while asking.is_alive():
            assert len(str(continuous(other)("y", rng=2))) == 61
    finally:
        stop.set()
        asking.join()
    assert waited
    assert found[0].errors == [[None]]
    assert str(found[0]) == str(alone)


def test_an_error_outside_of_the_step_is_of_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = from_transformers(random_network("llama"), FakeTokenizer())

    def wait() -> None:
        raise BudgetExceeded("no more states", "max_states", 7)

    heavy_masks(monkeypatch, "[0-9]{6}", wait)
    failed = continuous(generate.regex(model, "[0-9]{6}"))("the name ")
    assert isinstance(failed.errors[0][0], BudgetExceeded)
    assert failed.errors[0][0].limit == "max_states"
    assert len(str(continuous(generate.regex(model, "[a-z]{6}"))("x"))) == 7


class _Job:
    slow_seconds, slow_work, is_cancelled = 0.0, 0, False


def test_work_of_a_cancelled_job_is_not_begun_and_the_least_served_job_is_next() -> None:
    order, can_end, begun = list[str](), threading.Event(), threading.Semaphore(0)
    busy, gone = _Job(), _Job()
    busy.slow_seconds, gone.is_cancelled = 9.0, True

    def block() -> None:
        begun.release()
        assert can_end.wait(30)

    blocking = [SlowWork(block, _Job()) for _ in range(slow_work._MAX_THREADS)]
    for _ in blocking:
        begun.acquire()
    lock = threading.Lock()

    def note(name: str) -> None:
        with lock:
            order.append(name)

    waiting = [SlowWork(lambda: note("busy"), busy), SlowWork(lambda: note("gone"), gone), SlowWork(lambda: note("new"), _Job())]
    assert [one.account for one in sorted(slow_work._THREADS._waiting, key=slow_work.next_first)] == [gone, waiting[2].account, busy]
    can_end.set()
    for one in [*blocking, *waiting]:
        one.wait(30)
        assert one.is_done
        assert one.take() is None
    assert sorted(order) == ["busy", "new"]


def test_no_full_collection_runs_meanwhile_and_the_collector_is_as_before_after_it() -> None:
    before = gc.get_threshold()
    inside = SlowWork(gc.get_threshold, _Job())
    inside.wait(30)
    assert inside.take()[:2] == before[:2]
    assert inside.take()[2] > 10**6
    while gc.get_threshold() != before:
        pass


def test_every_row_of_a_step_may_do_a_little() -> None:
    slow_work.begin_step()
    with pytest.raises(TooLong), bounded():
        work.add(2 * slow_work.MAX_STEP_WORK)
        work.check()
    with bounded():
        work.add(slow_work.LEAST_ROW_WORK)
        work.check()
    with pytest.raises(TooLong), bounded():
        work.add(slow_work.LEAST_ROW_WORK + 1)
        work.check()
    slow_work.begin_step()
    with bounded():
        work.add(slow_work.MAX_STEP_WORK)
        work.check()


def test_all_masks_of_a_job_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobBound, "most", 100)

    def make(amount: int) -> str:
        work.add(amount)
        work.check()
        return "made"

    job, other = _Job(), _Job()
    found = []
    for account, amount in ((job, 60), (other, 60), (job, 60), (other, 40)):
        one = SlowWork(partial(make, amount), account)
        one.wait(30)
        try:
            found.append(one.take())
        except BudgetExceeded as error:
            found.append((error.limit, error.value))
    assert found == ["made", "made", ("max_slow_work", 100), "made"]
    assert (job.slow_work, other.slow_work) == (120, 100)


def test_the_plain_walk_of_a_mask_that_takes_too_long_is_cancelled_and_bounded() -> None:
    token_fsm = fsm.TokenFSM(fsm.regex("x(?=.*a.{4})(?=.*b.{5}).{6,20}"), fsm.Vocabulary([bytes([i]) for i in range(256)], []))
    token_fsm.max_mask_work = 0
    state = token_fsm.next_state(token_fsm.initial_state, ord("x"))
    with pytest.raises(work.Cancelled), work.cancellable(lambda: True):
        token_fsm.bitmask(state)
    with pytest.raises(TooLong), work.WorkLimit(20, TooLong):
        token_fsm.bitmask(state)
    assert token_fsm.allowed_token_ids(state).size > 90
