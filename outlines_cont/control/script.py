"""Scripts: programs as coroutines, with `await gen(...)` for text; a fork replays the coroutine from its beginning.

The functions of this module work inside a script that `control.run` runs. A script is not a task of an event loop: only these
functions can be awaited in it. `fork` brings a copy of the script to the same place by replaying it from its beginning, with all
requests answered as before; so each fork has its own local variables, and a script must be deterministic.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import ContextVar
from types import coroutine
from typing import Any, NoReturn

from outlines_cont.checks import is_int, shortened
from outlines_cont.control.fork_driver import (
    Action,
    End,
    ForkDriver,
    ForkPiece,
    ForkPlan,
    ForkView,
    PieceOutcome,
    Read,
    WaitFor,
)
from outlines_cont.control.fork_result import MAX_LOG
from outlines_cont.control.journal import Journal, JournalEntry
from outlines_cont.control.request import STOP_REASON, Fixed, ForkInto, Gen, Label, Request, Wait, texts_of
from outlines_cont.control.variables import Shared, Written
from outlines_cont.errors import IncompleteOutput, OptionError, ScriptError, StepBudgetError
from outlines_cont.generate import Generator as TextGenerator
from outlines_cont.generation.options import checked_policies
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import encode_letters
from outlines_cont.policies.policy import Policy
from outlines_cont.state.text import encoded_start
from outlines_cont.unknown_option import knows_its_options

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
        text: it is encoded where it stands; tokens before it stay as they are.
        following: a place; what stands after it is cut first. Only the new tokens are fed.

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
        substring_of: it occurs in this text; after it stands `substring_end`, which is not returned.
        substring_end: the mark that ends a substring; empty for the model's own end of text.
        stop_at: a text, or several; the generated text ends exactly before the first of them.
        keep_stop: let it end exactly after the stop text instead.
        max_tokens: the most tokens, forced ones included.
        policies: more policies that steer the piece, beside those of `control.run`.
        temperature: in place of the sampler's; 0 takes the most probable token.
        name: capture the text under this name.
        force: append text without a choice in one chunk instead of sampling it.
        require_stop: refuse a text that ends in another way than at `stop_at`. Without it such a text is returned as it is.
        draft: the draft for speculative decoding, such as "lookup"; see docs/draft.md.

    Raises:
        OptionError: several constraints, or a value out of its range.
        UnknownOption: an option is unknown, or not available in a script, such as `heal` and `guidance`.
        IncompleteOutput: `max_tokens` or the context has cut a constrained text, or one with `require_stop` did not reach its stop.
        CheckFailed, DeadEnd, FSMError: the constraint cannot be satisfied. The text so far stands.
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
    text: str = await _ask(request)
    return text


async def fork(count: int) -> int:
    """Continue as `count` forks, each with its own variables and random numbers; return which of them this is, from 0 on.

    Raises:
        ForkBudgetError: the budget of the program allows fewer.
        OptionError: `count` is not an int, 1 or more.
    """
    if not is_int(count, 1):
        raise OptionError(f"expected an int, 1 or more, as the number of forks, got {count!r}", "count")
    index: int = await _ask(ForkInto(count))
    return index


def label() -> Label:
    """Return the present end of the text as a place to come back to."""
    driver = _driver()
    place: Label = driver.once("label()", driver.place)
    return place


def text_since(place: Label) -> str:
    """Return the text after a place.

    Raises:
        ScriptError: the text before it was cut.
    """
    driver = _driver()
    text: str = driver.once(f"text_since({place})", lambda: driver.text_since(place))
    return text


def log(*values: object) -> None:
    """Write a line to the log of this fork, as `print` does. The oldest lines go where it is longer than 65,536 characters."""
    driver = _driver()
    line = " ".join(map(str, values))
    driver.once(f"log({line!r})", lambda: driver.write_log(line))


def stop() -> NoReturn:
    """End this fork here. `finally` blocks run."""
    raise _Stopped


class SharedVariables:
    """The variables that the forks of the running program have in common; see `Shared`."""

    def get(self, name: str) -> Any:
        """Return the value of a variable, None where it is missing."""
        return _shared("get", name)

    def version(self, name: str) -> int:
        """Return the version of a variable, 0 where it is missing."""
        version: int = _shared("version", name)
        return version

    def set(self, name: str, value: Any) -> int:
        """Write a variable; return its version."""
        version: int = _shared("set", name, value)
        return version

    def append(self, name: str, value: Any) -> int:
        """Write a variable with `value` after what it holds; return its version."""
        version: int = _shared("append", name, value)
        return version

    def cas(self, name: str, version: int, value: Any) -> Written:
        """Write a variable if its version is `version`; one that is missing is never written."""
        written: Written = _shared("cas", name, version, value)
        return written

    async def wait(self, *names: str) -> list[Any]:
        """Wait until all of some variables were written, and return the list of their values, also of one; no names, no wait.

        A fork that waits costs nothing.

        Raises:
            DeadlockError: no fork is left that could write them.
        """
        values: list[Any] = await _ask(Wait(texts_of(names, "names")))
        return values


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


def _shared(method: str, *arguments: Any) -> Any:
    driver = _driver()
    question = f"shared.{method}({', '.join(map(repr, arguments))})"
    return driver.once(question, lambda: getattr(driver.shared, method)(*arguments))


# -- the driver --------------------------------------------------------------------------------------------------------


class ScriptDriver(ForkDriver):
    """Runs a script from one `await` that needs the model to the next.

    Attributes:
        shared: the variables of the program.
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
        self._journal = journal or Journal()
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
        """Give the script what it waits for, and run it until it asks the model again."""
        self.token_ids, self._kept = [*view.token_ids], len(view.token_ids)
        if self._coroutine is None or isinstance(self._asked, ForkInto):
            return self._run(view, None)
        return self._run(view, self._answered(view))

    @property
    def is_open(self) -> bool:
        """Whether the script has not come to its end."""
        return self._coroutine is not None and not self._has_ended

    def close(self) -> None:
        """End the script where it stands; its `finally` blocks run, and may not await anything."""
        token = _current.set(self)
        try:
            if self._coroutine is not None:
                self._coroutine.close()
        finally:
            _current.reset(token)

    # -- what the functions above ask of it ----------------------------------------------------------------------------

    def once(self, question: str, act: Callable[[], Any]) -> Any:
        """Answer a question as before the fork, or for the first time."""
        return self._journal.once(question, act)

    def place(self) -> Label:
        """Return the present end of the text."""
        return Label(len(self.token_ids), len(self._cuts))

    def text_since(self, place: Label) -> str:
        """Return the text after a place."""
        self._check(place)
        return self._model.tokenizer.text_bytes(self.token_ids[place.position :]).decode(errors="replace")

    def write_log(self, line: str) -> None:
        """Write to the log."""
        self._log = (self._log + line + "\n")[-MAX_LOG:]

    # -- inside --------------------------------------------------------------------------------------------------------

    def _run(self, view: ForkView, answer: JournalEntry | None, index: int = 0, parent: int = 0) -> list[ForkPlan]:
        """Send the script an answer, and answer it as long as that takes no token of the model; return its plan and its forks'.

        Args:
            view: where the row stands.
            answer: to what the script has asked; None where it begins, or where its question is still to be dealt with.
            index: of its plan among all of the row.
            parent: see `ForkPlan`.
        """
        forks: list[ScriptDriver] = []
        action: Action | None = None
        while action is None:
            is_new = answer is not None or self._asked is None
            request = self._send(answer) if is_new else self._asked
            self._asked = None
            if isinstance(request, End):
                action = self._action(request)
            elif self._journal.is_replaying:
                answer = self._replay(request)
            else:
                try:
                    if is_new:
                        view.spend_step()
                    answer, action = self._handle(request, view, forks)
                except StepBudgetError as error:
                    action = self._action(self._stopped(error))
                except Exception as error:
                    answer = self._add_entry(JournalEntry(repr(request), error=error))
        plans = [ForkPlan(self, action, parent)]
        for fork in forks:
            plans += fork._run(view, None, index + len(plans), index)
        return plans

    def _send(self, answer: JournalEntry | None) -> Request | End:
        """Run the script to its next request, or to its end."""
        token = _current.set(self)
        try:
            if self._coroutine is None:
                self._coroutine = self._script()
                return self._checked(self._coroutine.send(None))
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

    def _stopped(self, error: StepBudgetError) -> End:
        """Raise an error where the script waits, and end it, also where it catches that and goes on."""
        end = self._send(JournalEntry("", error=error))
        # Without its frames, which are cleared when the row ends: `close` ends the script.
        return end if isinstance(end, End) else End(error.with_traceback(None))

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

    def _replay(self, request: Request) -> JournalEntry:
        try:
            return self._journal.next(repr(request))
        except ScriptError as error:
            return JournalEntry(repr(request), error=error)

    def _add_entry(self, entry: JournalEntry) -> JournalEntry:
        self._journal.add(entry)
        return entry

    def _handle(
        self, request: Request, view: ForkView, forks: list[ScriptDriver]
    ) -> tuple[JournalEntry | None, Action | None]:
        """Return the answer to a request, or the action that has to come before it."""
        match request:
            case Fixed(text, following):
                self._append(text, following)
                return self._add_entry(JournalEntry(repr(request))), None
            case ForkInto(count):
                if count > 1 and len(self.token_ids) - min(view.cached, self._kept) > 1:
                    return None, self._action_before_answer(request, Read())
                view.reserve(count - 1)
                forks += [self._fork_driver(JournalEntry(repr(request), index)) for index in range(1, count)]
                return self._add_entry(JournalEntry(repr(request), 0)), None
            case Wait(names):
                if self.shared.has(names):
                    return self._add_entry(JournalEntry(repr(request), [self.shared.get(name) for name in names])), None
                return None, self._action_before_answer(request, WaitFor(names))
            case Gen():
                self._generator = request.generator(self._model)
                return None, self._action_before_answer(request, request.piece(self._generator, self._policies))

    def _answered(self, view: ForkView) -> JournalEntry:
        """Return the answer to the request that was made before the model ran."""
        request, self._asked = self._asked, None
        question = repr(request)
        if view.error is not None:
            return self._add_entry(JournalEntry(question, error=view.error))
        if isinstance(request, Wait):
            return self._add_entry(JournalEntry(question, [self.shared.get(name) for name in request.names]))
        assert isinstance(request, Gen)
        assert view.outcome is not None
        try:
            return self._add_entry(JournalEntry(question, self._text(request, view.outcome)))
        except Exception as error:
            return self._add_entry(JournalEntry(question, error=error))

    def _text(self, request: Gen, outcome: PieceOutcome) -> str:
        """Return the text of a piece that has ended, and capture it where it has a name."""
        if outcome.error is not None:
            raise outcome.error
        token_ids = self.token_ids[outcome.start :]
        text = self._model.tokenizer.text_bytes(token_ids).decode(errors="replace")
        constraint = self._generator.constraint if self._generator is not None else None
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
        fork = ScriptDriver(self._script, self._model, self.shared, self._policies, self._journal.fork(entry))
        fork.token_ids, fork._kept, fork._cuts = [*self.token_ids], self._kept, [*self._cuts]
        return fork

    def _action_before_answer(self, request: Request, then: ForkPiece | WaitFor | Read) -> Action:
        """Return the action that precedes the answer to a request."""
        action = self._action(then)
        self._asked = request
        return action

    def _action(self, then: ForkPiece | WaitFor | Read | End) -> Action:
        """Return the pending action of the row, and clear it."""
        action = Action(then, self._kept, tuple(self.token_ids[self._kept :]), tuple(self._captures), self._log)
        self._captures, self._log = [], ""
        return action
