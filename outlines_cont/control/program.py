"""`Program`: a controller or a script on one prompt, run as a job of the engine that all generators of the model share; `start`, `run` and
`arun` submit it, and a `Result` has its forks. It advances in every step of that engine; samplers that search are refused, as are states of
several rows.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import Any

from outlines_cont import generate
from outlines_cont.checks import checked_bool
from outlines_cont.control.budget import Budget
from outlines_cont.control.controller import Controller, ControllerDriver, MidProcess
from outlines_cont.control.event import Event
from outlines_cont.control.fork_driver import ForkDriver
from outlines_cont.control.fork_result import Fork
from outlines_cont.control.job import ControlJob
from outlines_cont.control.row import ControlledRow
from outlines_cont.control.script import Script, ScriptDriver
from outlines_cont.control.variables import Shared
from outlines_cont.engine.engine import Engine, engine_of
from outlines_cont.errors import OptionError, SampleMismatch, ScriptError, shortened, with_result
from outlines_cont.generation.options import checked_policies
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.policy import Policy
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.sampling.sampler import Sampler
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.unknown_option import knows_its_options


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Result:
    """The result of a program.

    Attributes:
        forks: all of them, by their number.
        shared: the shared variables at the end.
        events: what has happened, in order.
        usage: the work of its rows alone, such as `usage.sampled_tokens` and `usage.forced_tokens`. What all rows of the model
            share is not in it: `usage.forwards` is 0, since all rows share a forward; `model.meter()` counts those.
    """

    forks: list[Fork]
    shared: dict[str, Any]
    events: list[Event]
    usage: Meter

    @property
    def texts(self) -> list[str]:
        """The text of every fork, without the prompt."""
        return [fork.text for fork in self.forks]

    @property
    def text(self) -> str:
        """The text of the first fork."""
        return self.forks[0].text

    @property
    def captures(self) -> dict[str, str]:
        """The captures of all forks; of equal names those of the fork with the smallest number."""
        return {name: text for fork in reversed(self.forks) for name, text in fork.captures.items()}

    @property
    def log(self) -> str:
        """The logs of all forks, one after the other."""
        return "".join(fork.log for fork in self.forks)

    @property
    def state(self) -> SequenceState:
        """All forks as the samples of one state, prompt included; those that were cancelled are left out."""
        states = [fork.state for fork in self.forks if fork.state is not None]
        if not states:
            raise ScriptError("expected a fork that has come to its end, got only cancelled ones, which have no state")
        return SequenceState(states[0].model, (tuple(state.rows[0][0] for state in states),), states[0].seed)

    @property
    def errors(self) -> list[Exception | None]:
        """The error of every fork."""
        return [fork.error for fork in self.forks]

    def check(self) -> Result:
        """Return the same, or raise the error of the first fork that has failed; its attribute `result` is this result."""
        for error in filter(None, self.errors):
            raise with_result(error, self)
        return self

    def __repr__(self) -> str:
        count = f"{len(self.forks)} fork{'s' if len(self.forks) != 1 else ''}"
        errors = ", ".join(
            f"{fork.index}: {shortened(repr(fork.error), 80)}" for fork in self.forks if fork.error is not None
        )
        return f"Result({count}, {f'errors: [{errors}], ' if errors else ''}{len(self.events)} events)"


class Program:
    """A submitted program; make one with `start`. It advances whenever the engine takes a step: in `result` or `events` of any
    program, or in a generator of the same model.
    """

    def __init__(self, engine: Engine, job: ControlJob, shared: Shared) -> None:
        self._engine = engine
        self._job = job
        self._shared = shared
        engine.submit(job)

    @property
    def is_over(self) -> bool:
        """Whether all forks have ended."""
        return self._job.is_over

    def result(self) -> Result:
        """Run to the end, and return the result. Forks that failed have their error; nothing is raised."""
        for _ in self.events():
            pass
        return self._result()

    async def aresult(self) -> Result:
        """The asynchronous form, which does not block the event loop; a cancelled task cancels the program."""
        async for _ in self.aevents():
            pass
        return self._result()

    def events(self) -> Iterator[Event]:
        """Run to the end, and yield what happens, from the beginning on. Leaving the loop earlier cancels the program."""
        seen = 0
        with closing(self._engine.steps(self._job)) as steps:
            for _ in steps:
                yield from self._job.events[seen : (seen := self._job.num_events)]

    async def aevents(self) -> AsyncIterator[Event]:
        """The asynchronous form, which does not block the event loop."""
        seen = 0
        async with aclosing(self._engine.async_steps(self._job)) as steps:
            async for _ in steps:
                for event in self._job.events[seen : (seen := self._job.num_events)]:
                    yield event

    def cancel(self) -> None:
        """Cancel all forks; they keep their texts, with `ProgramCancelled` as their error. A finished fork is not changed."""
        self._engine.cancel(self._job)

    def _result(self) -> Result:
        return Result(self._job.forks, self._shared.values(), self._job.events, self._job.usage)


@knows_its_options()
def start(
    model: LanguageModel,
    controller: Controller | MidProcess | Script,
    prompt: str | SequenceState,
    *,
    sampler: Sampler | None = None,
    rng: Rng = None,
    budget: Budget | None = None,
    shared: Shared | None = None,
    policies: Sequence[Policy[Any]] = (),
) -> Program:
    """Submit a program and return it; it runs together with other programs and generators, once one of them is waited for.

    Args:
        model: what writes.
        controller: a `Controller`, a function with the arguments of `mid_process`, or a script: a coroutine function.
        prompt: a text, or a state of one row; its keys and values are used.
        sampler: how tokens are drawn; greedy by default.
        rng: a seed, as for a generator.
        budget: what it may use; `Budget()` by default.
        shared: variables that it shares with other programs; its own by default.
        policies: policies of everything that a script generates, such as `[policies.ban(["delve"])]`.

    Raises:
        OptionError: the controller is not a controller, the sampler is a search, or the state has several batch entries.
        SampleMismatch: the state has several samples.
        PromptTypeError, EmptyPrompt, ContextLengthError: the prompt cannot be continued.
    """
    chosen = generate.text(model, sampler=sampler).sampler  # checks both as every generator does
    if isinstance(chosen, BeamSearch | BestOf):
        raise OptionError(
            "expected a sampler that draws token by token: a program searches by forks. Use `greedy()` or `multinomial()`.",
            "sampler",
        )
    _check_kinds(model, budget, shared)
    variables = shared if shared is not None else Shared()
    driver = _driver(model, controller, variables, checked_policies(policies))
    if isinstance(prompt, SequenceState) and len(prompt) != 1:
        advice = (
            f"expected a state of one row as the prompt of a program, got one of {prompt.batch_size} x {prompt.num_samples}. Start a "
            "program for each row, `start(model, controller, state.take([(b, s)]))`; a program makes several rows of one by `fork`."
        )
        raise SampleMismatch(advice) if prompt.num_samples != 1 else OptionError(advice, "prompt")
    opened = open_prompt(model, prompt, 1, rng)
    if len(opened.rows) != 1:
        raise OptionError(f"expected one prompt, got {len(opened.rows)}. Start a program for each.", "prompt")
    source = opened.rows[0][0]
    if source.error is not None:
        raise source.error
    name = getattr(controller, "__qualname__", type(controller).__qualname__)
    row = ControlledRow(source, driver, model, Meter(reused_tokens=opened.reused), json.dumps({"control": name}))
    job = ControlJob(row, model, chosen, budget if budget is not None else Budget(), variables, opened.seed)
    return Program(engine_of(model), job, variables)


@knows_its_options()
def run(
    model: LanguageModel,
    controller: Controller | MidProcess | Script,
    prompt: str | SequenceState,
    *,
    sampler: Sampler | None = None,
    rng: Rng = None,
    budget: Budget | None = None,
    shared: Shared | None = None,
    policies: Sequence[Policy[Any]] = (),
    check: bool = True,
) -> Result:
    """Run a program to its end; see `start` for the other arguments.

    Args:
        check: raise the error of the first fork that has failed, after all have ended; its attribute `result` is the whole
            result. Without it nothing is raised: what goes wrong in a fork is its `error`.
    """
    checked_bool(check, "check")
    result = start(
        model, controller, prompt, sampler=sampler, rng=rng, budget=budget, shared=shared, policies=policies
    ).result()
    return result.check() if check else result


@knows_its_options()
async def arun(
    model: LanguageModel,
    controller: Controller | MidProcess | Script,
    prompt: str | SequenceState,
    *,
    sampler: Sampler | None = None,
    rng: Rng = None,
    budget: Budget | None = None,
    shared: Shared | None = None,
    policies: Sequence[Policy[Any]] = (),
    check: bool = True,
) -> Result:
    """The asynchronous form, which does not block the event loop; many tasks share the steps of one engine."""
    checked_bool(check, "check")
    result = await start(
        model, controller, prompt, sampler=sampler, rng=rng, budget=budget, shared=shared, policies=policies
    ).aresult()
    return result.check() if check else result


def _check_kinds(model: LanguageModel, budget: object, shared: object) -> None:
    if budget is not None and not isinstance(budget, Budget):
        raise OptionError(
            f"expected a `Budget` or None as `budget`, got {budget!r}. Write `Budget(tokens=..., seconds=...)`.",
            "budget",
        )
    if shared is not None and not isinstance(shared, Shared):
        raise OptionError(
            f"expected a `Shared` or None as `shared`, got {type(shared).__name__}. Make one with `Shared()`, and write variables "
            "with its method `set`.",
            "shared",
        )
    if budget is not None and budget.kv_bytes is not None and model.is_recurrent:
        raise OptionError(
            "expected no `kv_bytes` for a recurrent model, which keeps snapshots in place of keys and values. Leave it out.",
            "kv_bytes",
        )


def _driver(model: LanguageModel, controller: Any, shared: Shared, policies: tuple[Policy[Any], ...]) -> ForkDriver:
    if inspect.iscoroutinefunction(controller):
        if not _takes(controller):
            raise _refused(controller, "It needs arguments: give them with `functools.partial(script, ...)`.")
        return ScriptDriver(controller, model, shared, policies)
    if policies:
        raise OptionError(
            "expected `policies` beside a script, whose pieces they steer, got a controller, which says itself what each token may be. "
            "Leave them out, or write the program as a script.",
            "policies",
        )
    if isinstance(controller, Controller):
        return ControllerDriver(controller, model.vocab_size)
    if inspect.iscoroutine(controller):
        controller.close()  # it will not be awaited
        raise _refused(
            controller, "It was called: pass `script`, not `script()`; for arguments `functools.partial(script, ...)`."
        )
    if isinstance(controller, type):
        raise _refused(controller, f"It is a class: call it, `{controller.__name__}()`.")
    if not callable(controller):
        raise _refused(controller, "")
    if inspect.isasyncgenfunction(controller):
        raise _refused(controller, "It has a `yield`, which a script has not.")
    if not _takes(controller, 0, 0, []):
        hint = (
            "A script is written `async def`; for arguments use `functools.partial(script, ...)`."
            if _takes(controller)
            else "It takes other arguments."
        )
        raise _refused(controller, hint)
    return ControllerDriver(controller, model.vocab_size)


def _takes(function: Callable[..., Any], *arguments: object) -> bool:
    """Return whether a function accepts some arguments, as far as its signature is known."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a built-in
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def _refused(controller: object, hint: str) -> OptionError:
    return OptionError(
        "expected a `Controller`, a function `(branch_index, last_backtrack, last_append)`, or a coroutine function (a script) "
        f"without arguments, got {controller!r}. {hint}".rstrip(),
        "controller",
    )
