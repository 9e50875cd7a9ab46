"""`Program`: a controller or a script on one prompt, run as a job of the engine that all generators of the model share. `start` submits
one; `run` and `arun` submit one, or one for each of several prompts, and return a `Result`, which has its forks. It advances in every step
of that engine; samplers that search are refused, and states of several rows.

`Controller`: a callback, as in AICI, that returns after each step the branches with which a sequence continues: tokens to rewind
(`backtrack`), to append (`ff_tokens`, fast-forward), or a mask to sample under. Several branches fork the sequence with a deep copy of its
controller (a function is shared), an empty list stops it; `ControllerDriver` raises `ScriptError` for invalid branches.
"""

from __future__ import annotations

import copy
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from typing import Any, Self, overload

from outlines_cont import checks, generate
from outlines_cont.budget import Budget
from outlines_cont.checks import checked_bool, knows_its_options
from outlines_cont.control.script import Script, ScriptDriver
from outlines_cont.engine.engine import Engine, engine_of
from outlines_cont.engine.job import Task
from outlines_cont.errors import OptionError, ScriptError, shortened
from outlines_cont.generation.options import checked_policies
from outlines_cont.generation.prompt import Opened, open_prompt
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import Branch, check_mask
from outlines_cont.policies.policy import Policy
from outlines_cont.programs.fork_program import Event, ForkDriver, ForkPlan, ForkView, forked_row
from outlines_cont.programs.job import ProgramJob, Result
from outlines_cont.programs.variables import Shared
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.sampling.params import Sampler
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.sequence_state import SequenceState, only_row

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


class Program:
    """A submitted program; make one with `start`. It advances whenever the engine takes a step: in `result` or `events` of any
    program, or in a generator of the same model.
    """

    def __init__(self, engine: Engine, job: ProgramJob) -> None:
        self._engine = engine
        self._job = job
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
        """Run to the end, and yield all events from the first on. Leaving the loop earlier cancels the program."""
        return self._engine.items(self._task())

    def aevents(self) -> AsyncIterator[Event]:
        """The asynchronous form, which does not block the event loop."""
        return self._engine.async_items(self._task())

    def _task(self) -> Task:
        seen = 0
        with closing(self._engine.steps(self._job)) as steps:
            for step in steps:
                yield step
                yield from self._job.events[seen : (seen := self._job.num_events)]

    def cancel(self) -> None:
        """Cancel all forks that run; they keep their texts, with `ProgramCancelled` as their error."""
        self._engine.cancel(self._job)

    def _result(self) -> Result:
        return Result(self._job.forks, self._job.shared.values(), self._job.events, self._job.usage)


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
    """Submit a program and return it; it runs together with other programs and generators, when the result of one of them is requested.

    Args:
        model: the language model.
        controller: a `Controller`, a function with the arguments of `mid_process`, or a script: a coroutine function.
        prompt: a text, or a state of one row, whose keys and values are used.
        sampler: how tokens are drawn; greedy by default.
        rng: a seed, as for a generator.
        budget: its limits; `Budget()` by default.
        shared: variables that it shares with other programs; its own by default.
        policies: policies of everything that a script generates, such as `[policies.ban(["delve"])]`.

    Raises:
        OptionError: the controller is not a controller, or the sampler is a search.
        SampleMismatch: the state has another number of rows than one.
        PromptTypeError, EmptyPrompt, ContextLengthError: the prompt cannot be continued.
    """
    chosen = generate.text(model, sampler=sampler).sampler  # with the checks of generators
    if isinstance(chosen, BeamSearch | BestOf):
        raise OptionError(
            "expected a sampler that draws token by token: a program searches by forks. Use `greedy()` or `multinomial()`.",
            "sampler",
        )
    _check_kinds(model, budget, shared)
    variables = Shared() if shared is None else shared
    driver = _driver(model, controller, variables, chosen, checked_policies(policies))
    opened = _open_row(model, prompt, rng)
    source = opened.rows[0][0]
    name = getattr(controller, "__qualname__", type(controller).__qualname__)
    counts = Meter(reused_tokens=opened.reused)
    row = forked_row(source, driver, model, chosen, counts, json.dumps({"control": name}))
    job = ProgramJob(row, model, Budget() if budget is None else budget, variables, opened.seed)
    return Program(engine_of(model), job)


@overload
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
) -> Result: ...


@overload
def run(
    model: LanguageModel,
    controller: Controller | MidProcess | Script,
    prompt: Sequence[str | SequenceState],
    *,
    sampler: Sampler | None = None,
    rng: Rng = None,
    budget: Budget | None = None,
    shared: Shared | None = None,
    policies: Sequence[Policy[Any]] = (),
    check: bool = True,
) -> Any: ...


@knows_its_options()
def run(
    model: LanguageModel,
    controller: Controller | MidProcess | Script,
    prompt: str | SequenceState | Sequence[str | SequenceState],
    *,
    sampler: Sampler | None = None,
    rng: Rng = None,
    budget: Budget | None = None,
    shared: Shared | None = None,
    policies: Sequence[Policy[Any]] = (),
    check: bool = True,
) -> Any:
    """Run a program to its end, or one for each of several prompts, in one batch; see `start` for the other arguments.

    Args:
        prompt: as for `start`; or a list of these. Each program has the budget for itself, a copy of the controller (`Controller.fork`),
            and the random numbers of its row in a batch.
        check: raise the error of the first fork that has failed, after all have ended; its attribute `result` is the whole
            result. Otherwise errors are only the attribute `error` of the forks.

    Returns:
        A `Result`; for several prompts a list with one for each.
    """
    checked_bool(check, "check")
    with _several(
        model, controller, prompt, rng, sampler=sampler, budget=budget, shared=shared, policies=policies
    ) as programs:
        results = [program.result() for program in programs]
    return _given(results, check)


@overload
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
) -> Result: ...


@overload
async def arun(
    model: LanguageModel,
    controller: Controller | MidProcess | Script,
    prompt: Sequence[str | SequenceState],
    *,
    sampler: Sampler | None = None,
    rng: Rng = None,
    budget: Budget | None = None,
    shared: Shared | None = None,
    policies: Sequence[Policy[Any]] = (),
    check: bool = True,
) -> Any: ...


@knows_its_options()
async def arun(
    model: LanguageModel,
    controller: Controller | MidProcess | Script,
    prompt: str | SequenceState | Sequence[str | SequenceState],
    *,
    sampler: Sampler | None = None,
    rng: Rng = None,
    budget: Budget | None = None,
    shared: Shared | None = None,
    policies: Sequence[Policy[Any]] = (),
    check: bool = True,
) -> Any:
    """The asynchronous form, which does not block the event loop; many tasks share the steps of one engine."""
    checked_bool(check, "check")
    with _several(
        model, controller, prompt, rng, sampler=sampler, budget=budget, shared=shared, policies=policies
    ) as programs:
        results = [await program.aresult() for program in programs]
    return _given(results, check)


@contextmanager
def _several(model: LanguageModel, controller: Any, prompt: Any, rng: Rng, **options: Any) -> Iterator[list[Program]]:
    """Start a program for each prompt; those that have not ended are cancelled after an error or an interrupt."""
    prompts, programs = _prompts(model, prompt, rng), list[Program]()
    try:
        for one, seed in prompts:
            own = controller.fork() if isinstance(controller, Controller) and len(prompts) > 1 else controller
            programs.append(start(model, own, one, rng=seed, **options))
        yield programs
    finally:
        for program in programs:
            program.cancel()


def _given(results: list[Result], check: bool) -> Any:
    """Return the one result, or the list of several; raise the error of the first that has failed."""
    if check:
        results = [result.check() for result in results]
    return results if len(results) > 1 else results[0]


def _prompts(model: LanguageModel, prompt: Any, rng: Rng) -> list[tuple[Any, Rng]]:
    """Return each prompt and its seed; of several the rows that they are in a batch, as states."""
    if not isinstance(prompt, list | tuple) or len(prompt) < 2:
        return [(prompt, rng)]
    checks.check_model(model)
    opened = open_prompt(model, prompt, 1, rng)
    state = SequenceState(model, tuple(map(tuple, opened.rows)), opened.seed)
    return [(state.take([(b, 0)]), None) for b in range(state.batch_size)]


def _open_row(model: LanguageModel, prompt: str | SequenceState, rng: Rng) -> Opened:
    """Return the prompt as one row, or raise the error of a row that has failed."""
    if isinstance(prompt, SequenceState):
        only_row(prompt, model, "a program, which makes several rows of one by `fork`")
    opened = open_prompt(model, prompt, 1, rng)
    if len(opened.rows) != 1:
        raise OptionError(f"expected one prompt, got {len(opened.rows)}. Start a program for each.", "prompt")
    error = opened.rows[0][0].error
    if error is not None:
        raise error
    return opened


def _check_kinds(model: LanguageModel, budget: object, shared: object) -> None:
    advice = "Write `Budget(tokens=..., seconds=...)`."
    checks.check("budget", budget, isinstance(budget, Budget | None), "a `Budget` or None", advice)
    advice = "Make one with `Shared()`, and write variables with its method `set`."
    checks.check("shared", shared, isinstance(shared, Shared | None), "a `Shared` or None", advice)
    if isinstance(budget, Budget) and budget.kv_bytes is not None and model.is_recurrent:
        raise OptionError(
            "expected no `kv_bytes` for a recurrent model, which keeps snapshots in place of keys and values. Omit it.",
            "kv_bytes",
        )


def _driver(
    model: LanguageModel, controller: Any, shared: Shared, sampler: Sampler, policies: tuple[Policy[Any], ...]
) -> ForkDriver:
    if inspect.iscoroutinefunction(controller):
        if not _takes(controller):
            raise _refused(controller, "It needs arguments: give them with `functools.partial(script, ...)`.")
        return ScriptDriver(controller, model, shared, sampler, policies)
    if policies:
        raise OptionError(
            "expected `policies` for a script, for what it generates, got a controller, which returns the masks itself. Omit them, or "
            "write the program as a script.",
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
        raise _refused(controller, "It has a `yield`, which a script may not have.")
    if not _takes(controller, 0, 0, []):
        is_script = "A script is written `async def`; for arguments use `functools.partial(script, ...)`."
        raise _refused(controller, is_script if _takes(controller) else "It takes other arguments.")
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
