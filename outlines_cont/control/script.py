"""Scripts: programs as coroutines, with `await gen(...)` for text, run without an event loop. Python cannot copy a coroutine, so a fork
runs the script again from its beginning and answers its requests from a `Journal`; a script must be deterministic, and one that is not
fails with `ReplayError`.

The functions of this module work inside a script that `control.run` runs, and only they can be awaited in it. Each fork has its own local
variables; `shared` has those that forks have in common.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import ContextVar
from functools import partial
from types import coroutine
from typing import Any, NoReturn, TypeVar

from outlines_cont.checks import is_int
from outlines_cont.control.fork_driver import (
    End,
    ForkDriver,
    ForkPlan,
    ForkView,
    PieceOutcome,
    Read,
    Then,
    Wait,
)
from outlines_cont.control.fork_result import MAX_LOG
from outlines_cont.control.journal import Journal, JournalEntry
from outlines_cont.control.request import STOP_REASON, Fixed, ForkInto, Gen, Label, Request
from outlines_cont.control.variables import Shared, Written
from outlines_cont.errors import IncompleteOutput, OptionError, ScriptError, StepBudgetError, shortened
from outlines_cont.generate import Generator as TextGenerator
from outlines_cont.generation.options import checked_policies, texts_of
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import encode_letters
from outlines_cont.policies.policy import Policy
from outlines_cont.state.text import encoded_start
from outlines_cont.unknown_option import knows_its_options

T = TypeVar("T")
Script = Callable[[], Coroutine[Any, Any, Any]]

_NO_TASK = "A script is not a task of an event loop: only functions of `control` can be awaited in it."

_current: ContextVar[ScriptDriver] = ContextVar("script")

_OF_CALLS = "It is an option of a call of a generator: `continuous(generator)(result.state, {}=...)` goes on where a program has ended."
# What a call of a generator takes, and a piece of a script does not.
_NOT_OF_PIECES = {
    "heal": "A piece takes back no token, as labels may point after it. End what `fixed` appends where a token may end, such as after a "
    "word, or spell it anew with what follows: `fixed(text, following=label)`.",
    "guidance": f"A fork has no second sequence beside it. {_OF_CALLS.format('guidance')}",
    "min_tokens": _OF_CALLS.format("min_tokens"),
    "stop_token_ids": _OF_CALLS.format("stop_token_ids"),
    "stop_in_prompt": "Ask `text_since(label)` what stands there.",
    "on_progress": "`control.start(...).events()` tells how far a program has come.",
    "sampler": "Give it to `control.run(..., sampler=...)`; `temperature=` changes it for a piece.",
    "rng": "Give it to `control.run(..., rng=...)`.",
}


# -- what a script calls -----------------------------------------------------------------------------------------------


async def fixed(text: str, *, following: Label | None = None) -> None:
    """Append a text. Texts that follow each other are fed in one forward, with the token before them.

    Args:
        text: it is encoded at the end of the text so far, whose tokens do not change.
        following: a label; what is after it is cut first. Only the new tokens are fed.

    Raises:
        ScriptError: the label is after the end: the text before it was cut.
        TokenizerError: the text cannot be spelled.
    """
    if not isinstance(text, str):
        raise OptionError(f"expected a text, got {type(text).__name__}", "text")
    if following is not None and not isinstance(following, Label):
        raise OptionError(
            f"expected a label that `label()` has returned as `following`, got {following!r}", "following"
        )
    await _ask(Fixed(text, following))


@knows_its_options(elsewhere=_NOT_OF_PIECES)
async def gen(
    *,
    regex: str | None = None,
    choice: Sequence[str] | None = None,
    json: Any = None,
    grammar: str | None = None,
    substring_of: str | None = None,
    substring_end: str = '"',
    stop_at: str | Sequence[str] | None = None,
    keep_stop: bool = False,
    max_tokens: int | None = None,
    policies: Sequence[Policy[Any]] = (),
    temperature: float | None = None,
    name: str | None = None,
    force: bool = True,
    require_stop: bool = False,
    draft: Any = None,
) -> str:
    """Generate a text and return it.

    Args:
        regex: it matches this pattern.
        choice: it is one of these.
        json: it is JSON that validates against this schema, or type.
        grammar: it is a text of this grammar, in the language of Lark.
        substring_of: it occurs in this text; `substring_end` follows it, which is not returned.
        substring_end: the mark that ends a substring; empty for the model's own end of text.
        stop_at: a text, or several; the generated text ends exactly before the first of them.
        keep_stop: let it end exactly after the stop text instead.
        max_tokens: the most tokens, forced ones included.
        policies: policies of this text, besides those of `control.run`.
        temperature: in place of the sampler's; 0 takes the most probable token.
        name: capture the text under this name.
        force: append text without a choice in one chunk instead of sampling it.
        require_stop: raise `IncompleteOutput` for a text that ends in another way than at `stop_at`, which is returned otherwise.
        draft: the draft for speculative decoding, such as "lookup"; see docs/draft.md.

    Raises:
        OptionError: several constraints, or a value out of its range.
        UnknownOption: an option is unknown, or not available in a script, such as `heal` and `guidance`.
        IncompleteOutput: `max_tokens` or the context has cut a constrained text, or one with `require_stop` did not reach its stop.
        CheckFailed, DeadEnd, FSMError: the constraint cannot be satisfied. The text so far is kept.
    """
    if isinstance(choice, str):
        raise OptionError(
            f"expected a list of options, got one text {choice!r}. Write [{choice!r}] for a single option.", "choice"
        )
    options = None if choice is None else texts_of(choice, "choice")
    request = Gen(
        regex=regex,
        choice=options,
        json=json,
        grammar=grammar,
        substring_of=substring_of,
        substring_end=substring_end,
        stop_at=texts_of(stop_at, "stop_at"),
        keep_stop=keep_stop,
        max_tokens=max_tokens,
        policies=checked_policies(policies),
        temperature=temperature,
        name=name,
        force=force,
        require_stop=require_stop,
        draft=draft,
    )
    request.check()
    return str(await _ask(request))


async def fork(count: int) -> int:
    """Continue as `count` forks, each with its own variables and random numbers; return which of them this is, from 0 on.

    Raises:
        ForkBudgetError: the budget of the program allows fewer.
        OptionError: `count` is not an int, 1 or more.
    """
    if not is_int(count, 1):
        raise OptionError(f"expected an int, 1 or more, as the number of forks, got {count!r}", "count")
    return int(await _ask(ForkInto(count)))


def label() -> Label:
    """Return the present end of the text as a position to return to."""
    driver = _driver()
    return driver.journal.once("label()", driver.place)


def text_since(place: Label) -> str:
    """Return the text after a label.

    Raises:
        ScriptError: the text before it was cut.
    """
    driver = _driver()
    return driver.journal.once(f"text_since({place})", lambda: driver.text_since(place))


def log(*values: object) -> None:
    """Write a line to the log of this fork, as `print` does. Only its last 65,536 characters are kept."""
    driver = _driver()
    line = " ".join(map(str, values))
    driver.journal.once(f"log({line!r})", lambda: driver.write_log(line))


def stop() -> NoReturn:
    """End this fork here. `finally` blocks run."""
    raise _Stopped


class SharedVariables:
    """The variables that the forks of the running program have in common; see `Shared`."""

    def get(self, name: str) -> Any:
        """Return the value of a variable, None where it is missing."""
        return _shared(Shared.get, name)

    def version(self, name: str) -> int:
        """Return the version of a variable, 0 where it is missing."""
        return _shared(Shared.version, name)

    def set(self, name: str, value: Any) -> int:
        """Write a variable; return its version."""
        return _shared(Shared.set, name, value)

    def append(self, name: str, value: Any) -> int:
        """Append to the value of a variable; return its version."""
        return _shared(Shared.append, name, value)

    def cas(self, name: str, version: int, value: Any) -> Written:
        """Write a variable if its version is `version`; one that is missing is never written."""
        return _shared(Shared.cas, name, version, value)

    async def wait(self, *names: str) -> list[Any]:
        """Wait until all of some variables were written, and return the list of their values, also of one; no names, no wait.

        A fork that waits costs nothing.

        Raises:
            DeadlockError: no fork is left that could write them.
        """
        return list(await _ask(Wait(texts_of(names, "names"))))


shared = SharedVariables()


class _Stopped(BaseException):
    """Raised by `stop`; a `BaseException`, so that scripts do not catch it by accident."""


@coroutine
def _ask(request: Request) -> Generator[Request, Any, Any]:
    _driver()
    return (yield request)


def _driver() -> ScriptDriver:
    try:
        return _current.get()
    except LookupError:
        raise ScriptError(
            "expected a script that `control.run` runs: outside of one there is no text to work on. "
            "Write `async def script(): ...` and call `control.run(model, script, prompt)`."
        ) from None


def _shared(method: Callable[..., T], *arguments: Any) -> T:
    driver, name = _driver(), method.__name__
    act: Callable[[], T] = partial(getattr(driver.shared, name), *arguments)
    return driver.journal.once(f"shared.{name}({', '.join(map(repr, arguments))})", act)


# -- the driver --------------------------------------------------------------------------------------------------------


class ScriptDriver(ForkDriver):
    """Runs a script from one `await` that needs the model to the next.

    Attributes:
        shared: the variables of the program.
        journal: the requests of the script so far, with their answers.
        token_ids: the tokens of the fork as the script sees them: what it has appended since the model ran last included.
    """

    speculates = False

    def __init__(
        self,
        script: Script,
        model: LanguageModel,
        shared: Shared,
        policies: tuple[Policy[Any], ...] = (),
        journal: Journal | None = None,
    ) -> None:
        self.shared = shared
        self._policies = policies
        self.token_ids: list[int] = []
        self._script = script
        self._model = model
        self.journal = journal or Journal()
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._has_ended = False
        self._asked: Request | None = None
        self._generator: TextGenerator | None = None
        # How many of the row's own tokens the script has kept so far.
        self._kept = 0
        self._cuts: list[int] = []
        self._captures: list[tuple[str, str]] = []
        self._log = ""

    def call(self, view: ForkView) -> list[ForkPlan]:
        """Send the script what it awaits, and run it to its next request that needs the model."""
        self.token_ids, self._kept = [*view.token_ids], len(view.token_ids)
        is_to_answer = self._coroutine is not None and not isinstance(self._asked, ForkInto)
        return self._run(view, self._answered(view) if is_to_answer else None)

    @property
    def is_open(self) -> bool:
        """Whether the script has not come to its end."""
        return self._coroutine is not None and not self._has_ended

    def close(self) -> None:
        """End the script at its present `await`; its `finally` blocks run, and may not await anything."""
        token = _current.set(self)
        try:
            if self._coroutine is not None:
                self._coroutine.close()
        finally:
            _current.reset(token)

    def place(self) -> Label:
        """Return the present end of the text."""
        return Label(len(self.token_ids), len(self._cuts))

    def text_since(self, place: Label) -> str:
        """Return the text after a place."""
        self._check(place)
        return self._text_from(place.position)

    def write_log(self, line: str) -> None:
        """Write to the log."""
        self._log = (self._log + line + "\n")[-MAX_LOG:]

    def _run(self, view: ForkView, answer: JournalEntry | None, index: int = 0, parent: int = 0) -> list[ForkPlan]:
        """Send the script an answer, and answer it as long as that takes no token of the model; return its plan and its forks'.

        Args:
            view: the present state of the row.
            answer: to what the script has asked; None where it begins, or where its question is still to be dealt with.
            index: of its plan among all of the row.
            parent: see `ForkPlan`.
        """
        forks: list[ScriptDriver] = []
        found: JournalEntry | Then
        while True:
            asked, self._asked = self._asked, None
            request = self._send(answer) if asked is None or answer is not None else asked
            if isinstance(request, End):
                found = request
            elif self.journal.is_replaying:
                found = self.journal.next(repr(request))
            else:
                found = self._handled(request, view, forks, is_new=request is not asked)
                self._asked = request
            if not isinstance(found, JournalEntry):
                break
            answer = found
        added, captures = tuple(self.token_ids[self._kept :]), tuple(self._captures)
        plans = [ForkPlan(self, found, self._kept, added, captures, self._log, parent)]
        self._captures, self._log = [], ""
        for fork in forks:
            plans += fork._run(view, None, index + len(plans), index)
        return plans

    def _send(self, answer: JournalEntry | None) -> Request | End:
        """Run the script to its next request, or to its end."""
        token = _current.set(self)
        try:
            if self._coroutine is None:
                self._coroutine = self._script()
            if answer is not None and answer.error is not None:
                return self._checked(self._coroutine.throw(answer.error))
            return self._checked(self._coroutine.send(None if answer is None else answer.answer()))
        except (StopIteration, _Stopped):
            self._has_ended = True
            return End()
        except Exception as error:
            self._has_ended = True
            if isinstance(error, RuntimeError) and str(error) == "no running event loop":
                error = ScriptError(
                    f"expected a script without an event loop, but it asked for one. {_NO_TASK}"
                ).with_traceback(error.__traceback__)
            return End(error, "".join(traceback.format_exception(error)))
        finally:
            _current.reset(token)

    def _checked(self, request: object) -> Request:
        if isinstance(request, Request):
            return request
        assert self._coroutine is not None
        # The script cannot go on: nothing answers what it awaits.
        self._coroutine.throw(
            ScriptError(
                f"expected an `await` of `control.fixed`, `gen`, `fork` or `shared.wait`, got {request!r}. {_NO_TASK}"
            )
        )
        raise ScriptError("a script went on after awaiting something that is not a request")

    def _handled(
        self, request: Request, view: ForkView, forks: list[ScriptDriver], *, is_new: bool
    ) -> JournalEntry | Then:
        """Return the answer to a request, or what has to come before it; that ends a script whose steps are spent."""
        try:
            if is_new:
                view.spend_step()
            found = self._handle(request, view, forks)
        except StepBudgetError as error:
            end = self._send(JournalEntry("", error=error))
            # A script that catches it ends all the same, by `close`: the frames of an error are cleared when the row ends.
            return end if isinstance(end, End) else End(error.with_traceback(None))
        except Exception as error:
            found = JournalEntry(repr(request), error=error)
        return self.journal.add(found) if isinstance(found, JournalEntry) else found

    def _handle(self, request: Request, view: ForkView, forks: list[ScriptDriver]) -> JournalEntry | Then:
        question = repr(request)
        match request:
            case Fixed(text, following):
                self._append(text, following)
                return JournalEntry(question)
            case ForkInto(count):
                if count > 1 and len(self.token_ids) - min(view.cached, self._kept) > 1:
                    return Read()
                view.reserve(count - 1)
                forks += [self._fork_driver(JournalEntry(question, index)) for index in range(1, count)]
                return JournalEntry(question, 0)
            case Wait(names):
                return JournalEntry(question, self._values(names)) if self.shared.has(names) else request
            case Gen():
                self._generator = request.generator(self._model)
                return request.piece(self._generator, self._policies)

    def _answered(self, view: ForkView) -> JournalEntry:
        """Return the answer to the request that was made before the model ran."""
        request, self._asked = self._asked, None
        value: Any = None
        error = view.error
        if error is None:
            try:
                if isinstance(request, Wait):
                    value = self._values(request.names)
                else:
                    assert isinstance(request, Gen)
                    assert view.outcome is not None
                    value = self._text(request, view.outcome)
            except Exception as failure:
                error = failure
        return self.journal.add(JournalEntry(repr(request), value, error))

    def _values(self, names: Sequence[str]) -> list[Any]:
        return [self.shared.get(name) for name in names]

    def _text_from(self, start: int) -> str:
        return self._model.tokenizer.text_bytes(self.token_ids[start:]).decode(errors="replace")

    def _text(self, request: Gen, outcome: PieceOutcome) -> str:
        """Return the text of a generated span that has ended, and capture it where it has a name."""
        if outcome.error is not None:
            raise outcome.error
        text = self._text_from(outcome.start)
        constraint = self._generator.constraint if self._generator is not None else None
        token_ids = self.token_ids[outcome.start :]
        if outcome.reason == "length" and constraint is not None and not constraint.accepts(token_ids):
            raise IncompleteOutput(
                f"expected a text that conforms to the constraint, but `max_tokens` or the context cut it to {shortened(repr(text))}. "
                "Raise `max_tokens`.",
                text,
                outcome.reason,
            )
        if request.require_stop and outcome.reason != STOP_REASON:
            raise IncompleteOutput(
                f"expected a text that ends at {' or '.join(map(repr, request.stop_at))}, but it ended before ({outcome.reason}): "
                f"{shortened(repr(text))}. Raise `max_tokens`, or leave out `require_stop`.",
                text,
                outcome.reason,
            )
        if request.substring_of is not None:
            text = text.removesuffix(request.substring_end)
        if request.name is not None:
            self._captures.append((request.name, text))
        return text

    def _append(self, text: str, following: Label | None) -> None:
        if following is not None:
            self._check(following)
            del self.token_ids[following.position :]
            self._cuts.append(following.position)
            self._kept = min(self._kept, following.position)
        tokenizer = self._model.tokenizer
        if not tokenizer.text_bytes(self.token_ids):
            self.token_ids += encoded_start(text, tokenizer)
        else:
            self.token_ids += encode_letters(text, tokenizer, self.token_ids)

    def _check(self, place: Label) -> None:
        if not isinstance(place, Label):
            raise OptionError(f"expected a label that `label()` has returned, got {place!r}", "place")
        if any(cut < place.position for cut in self._cuts[place.num_cuts :]):
            raise ScriptError(
                f"expected a label that `label()` has returned, of text that still stands, got {place!r}: the text before it was "
                "cut. Take a new one."
            )

    def _fork_driver(self, entry: JournalEntry) -> ScriptDriver:
        fork = ScriptDriver(self._script, self._model, self.shared, self._policies, self.journal.fork(entry))
        fork.token_ids, fork._kept, fork._cuts = [*self.token_ids], self._kept, [*self._cuts]
        return fork
