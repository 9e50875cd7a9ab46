"""What a script does. `gen` and `fixed` append text, `fork` forks; `label`, `text_since`, `log`, `stop` and `shared` do not need the model.
A script is a coroutine that `control.run` runs without an event loop; only `gen`, `fixed`, `fork` and `shared.wait` can be awaited in it.

`ScriptDriver`: runs a script from one `await` that needs the model to the next. Requests are values: `Fixed`, `ForkInto`, `Wait` and `Gen`.
Python cannot copy a coroutine, so a fork runs the script again from its beginning, and gets the answers to its requests from a `Journal`,
as deep copies; a script must be deterministic: one that requests something else gets a `ReplayError`. Forks have local variables of their
own, and `shared` in common. Generators of equal requests are made once.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from numbers import Real
from types import coroutine
from typing import Any, NoReturn, TypeVar

from fsm import substring
from outlines_cont import generate
from outlines_cont.checks import check, check_int, check_one_of, checked_bool, knows_its_options
from outlines_cont.errors import IncompleteOutput, OptionError, ReplayError, ScriptError, StepBudgetError, shortened
from outlines_cont.generation.choice_rows import ChoiceRows, SpanChoice
from outlines_cont.generation.exact_choice import ExactChoice, temperature_of
from outlines_cont.generation.options import Options, check_beside_stop, check_one_constraint, texts_of
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import encode_letters
from outlines_cont.policies.constraint import EndMode
from outlines_cont.policies.policy import Policy
from outlines_cont.programs.fork_program import (
    End,
    ForkDriver,
    ForkPiece,
    ForkPlan,
    ForkView,
    PieceOutcome,
    Read,
    Then,
    Wait,
)
from outlines_cont.programs.job import MAX_LOG
from outlines_cont.programs.variables import Shared, Written
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.text import encoded_start


@dataclass(frozen=True, slots=True)
class Label:
    """A position in the text of a fork.

    Attributes:
        position: how many tokens are before it.
        num_cuts: how often the text had been cut when the label was made.
    """

    position: int
    num_cuts: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """Append a text; before that, remove everything after the label `following`."""

    text: str
    following: Label | None = None


@dataclass(frozen=True, slots=True)
class ForkInto:
    """Continue as `count` forks."""

    count: int


@dataclass(frozen=True, slots=True)
class Gen:
    """Generate a span; see `gen` for the attributes, of which `given` has the constraint by its name, if there is one."""

    given: Mapping[str, Any]
    substring_end: str
    temperature: float | None
    name: str | None
    force: bool
    end: EndMode | None
    require_stop: bool
    options: Options

    def generator(self, model: LanguageModel) -> generate.Generator:
        """Return the generator of the span; equal ones are made once, as in a loop."""
        text = self.given.get("substring_of")
        if text is None:
            return generate.made_once(model, generate.maker_of(self.given, force=self.force, end=self.end))
        end = self.end or generate.ENDS["fsm"]
        return generate.made_once(
            model, partial(_substring, text=text, mark=self.substring_end, force=self.force, end=end)
        )


Request = Fixed | ForkInto | Wait | Gen


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A request, as its `repr`, and its answer: a value, or an error to raise."""

    request: str
    value: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, request: str, act: Callable[[], Any]) -> JournalEntry:
        """Return the entry whose answer is what `act` returns, or raises."""
        try:
            return cls(request, act())
        except Exception as error:
            return cls(request, error=error)

    def answer(self) -> Any:
        """Return a copy of the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return copy.deepcopy(self.value)


class Journal:
    """The entries of one fork, in order, and how many of them were replayed since its script has begun."""

    def __init__(self, entries: tuple[JournalEntry, ...] = ()) -> None:
        self._entries = list(entries)
        self._read = 0

    @property
    def is_replaying(self) -> bool:
        """Whether the next request has a recorded answer."""
        return self._read < len(self._entries)

    def fork(self, entry: JournalEntry) -> Journal:
        """Return the journal of a fork: the same entries and one more, to be replayed from the beginning."""
        return Journal((*self._entries, entry))

    def add(self, entry: JournalEntry) -> JournalEntry:
        """Record a new answer, and return it."""
        self._entries.append(entry)
        self._read += 1
        return entry

    def next(self, request: str) -> JournalEntry:
        """Return the recorded entry of a request; one with a `ReplayError` if another request was recorded."""
        entry = self._entries[self._read]
        if entry.request != request:
            error = ReplayError(
                f"expected the script to request {entry.request} again, as before the fork, but it requested {request}. "
                "A script must do the same when it is run again: take what changes (time, random numbers, files) from outside as "
                "an argument, or do it once and share it."
            )
            return JournalEntry(request, error=error)
        self._read += 1
        return entry

    def once(self, request: str, act: Callable[[], T]) -> T:
        """Return the recorded answer; if there is none, call `act` and record its result or error."""
        is_known = self.is_replaying
        entry = self.next(request) if is_known else self.add(JournalEntry.of(request, lambda: copy.deepcopy(act())))
        answer: T = entry.answer()
        return answer


Script = Callable[[], Coroutine[Any, Any, Any]]

_NO_TASK = "A script is not a task of an event loop: only functions of `control` can be awaited in it."

running_driver: ContextVar[ScriptDriver] = ContextVar("script")
"""The driver of the script that is running in this thread."""


class ScriptStopped(BaseException):
    """Raised by `script.stop`; a `BaseException`, so that scripts do not catch it by accident."""


class ScriptDriver(ForkDriver):
    """Runs a script for one fork.

    Attributes:
        journal: the requests of the script so far, with their answers.
        token_ids: the tokens of the fork as the script sees them: also those that it has appended since the model ran last.
    """

    speculates = False

    def __init__(
        self,
        script: Script,
        model: LanguageModel,
        shared: Shared,
        sampler: Sampler,
        policies: tuple[Policy[Any], ...] = (),
        journal: Journal | None = None,
    ) -> None:
        self.shared = shared
        self.journal = journal or Journal()
        self.token_ids: list[int] = []
        self._script = script
        self._model = model
        self._sampler = sampler
        self._policies = policies
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._has_ended = False
        self._awaited: Request | None = None
        self._generator: generate.Generator | None = None
        self._choices: dict[tuple[ExactChoice, float], ChoiceRows] = {}  # those of all forks
        self._kept = 0  # how many of the row's own tokens the script has kept so far
        self._cuts: list[int] = []
        self._captures: list[tuple[str, str]] = []
        self._log = ""

    def call(self, view: ForkView) -> list[ForkPlan]:
        """Send the script the answer that it awaits, and run it to its next request that needs the model."""
        self.token_ids, self._kept = [*view.token_ids], len(view.token_ids)
        has_answer = self._coroutine is not None and not isinstance(self._awaited, ForkInto)
        return self._run(view, self._answer(view) if has_answer else None)

    @property
    def is_open(self) -> bool:
        """Whether the script has begun and not ended."""
        return self._coroutine is not None and not self._has_ended

    def close(self) -> None:
        """End the script at its present `await`; its `finally` blocks run, and may not await anything."""
        token = running_driver.set(self)
        try:
            if self._coroutine is not None:
                self._coroutine.close()
        finally:
            running_driver.reset(token)

    def label(self) -> Label:
        """Return the present end of the text."""
        return Label(len(self.token_ids), len(self._cuts))

    def text_since(self, label: Label) -> str:
        """Return the text after a label."""
        self._check(label)
        return self._text_from(label.position)

    def write_log(self, line: str) -> None:
        """Write to the log."""
        self._log = (self._log + line + "\n")[-MAX_LOG:]

    def _run(self, view: ForkView, answer: JournalEntry | None, index: int = 0, parent: int = 0) -> list[ForkPlan]:
        """Send the script an answer, and answer its requests until one needs the model; return its plan and those of its forks.

        `answer` is None if the script has not begun, or its request is to be executed now; `index` is that of its plan.
        """
        forks: list[ScriptDriver] = []
        found: JournalEntry | Then
        while True:
            awaited, self._awaited = self._awaited, None
            request = self._send(answer) if awaited is None or answer is not None else awaited
            if isinstance(request, End):
                found = request
            elif self.journal.is_replaying:
                found = self.journal.next(repr(request))
            else:
                found = self._execute(request, view, forks, is_new=request is not awaited)
                self._awaited = request
            if not isinstance(found, JournalEntry):
                break
            answer = found
        appended, captures = tuple(self.token_ids[self._kept :]), tuple(self._captures)
        plans = [ForkPlan(self, found, self._kept, appended, captures, self._log, parent)]
        self._captures, self._log = [], ""
        for fork in forks:
            plans += fork._run(view, None, index + len(plans), index)
        return plans

    def _send(self, answer: JournalEntry | None) -> Request | End:
        """Run the script to its next request, or to its end."""
        token = running_driver.set(self)
        try:
            if self._coroutine is None:
                self._coroutine = self._script()
            if answer is not None and answer.error is not None:
                return self._checked(self._coroutine.throw(answer.error))
            return self._checked(self._coroutine.send(None if answer is None else answer.answer()))
        except (StopIteration, ScriptStopped):
            self._has_ended = True
            return End()
        except Exception as error:
            self._has_ended = True
            if isinstance(error, RuntimeError) and str(error) == "no running event loop":
                told = f"expected a script without an event loop, but it requested one. {_NO_TASK}"
                error = ScriptError(told).with_traceback(error.__traceback__)
            return End(error, "".join(traceback.format_exception(error)))
        finally:
            running_driver.reset(token)

    def _checked(self, request: object) -> Request:
        if isinstance(request, Request):
            return request
        assert self._coroutine is not None
        told = f"expected an `await` of `control.fixed`, `gen`, `fork` or `shared.wait`, got {request!r}. {_NO_TASK}"
        self._coroutine.throw(ScriptError(told))
        raise ScriptError("a script continued after awaiting something that is not a request")

    def _execute(
        self, request: Request, view: ForkView, forks: list[ScriptDriver], *, is_new: bool
    ) -> JournalEntry | Then:
        """Return the answer to a request, or what the row must do before it is known; end a script without steps left."""
        try:
            if is_new:
                view.spend_step()
            found = self._answer_or_plan(request, view, forks)
        except StepBudgetError as error:
            end = self._send(JournalEntry("", error=error))
            # A script that catches it is ended by `close`: the frames of an error are cleared when the row ends.
            return end if isinstance(end, End) else End(error.with_traceback(None))
        except Exception as error:
            found = JournalEntry(repr(request), error=error)
        return self.journal.add(found) if isinstance(found, JournalEntry) else found

    def _answer_or_plan(self, request: Request, view: ForkView, forks: list[ScriptDriver]) -> JournalEntry | Then:
        recorded = repr(request)
        match request:
            case Fixed(text, following):
                self._append(text, following)
                return JournalEntry(recorded)
            case ForkInto(count):
                if count > 1 and len(self.token_ids) - min(view.cached, self._kept) > 1:
                    return Read()
                view.reserve(count - 1)
                forks += [self._fork(JournalEntry(recorded, index)) for index in range(1, count)]
                return JournalEntry(recorded, 0)
            case Wait(names):
                return JournalEntry(recorded, self._values(names)) if self.shared.has(names) else request
            case Gen():
                self._generator = request.generator(self._model)
                return self._piece(request, self._generator)

    def _piece(self, request: Gen, generator: generate.Generator) -> ForkPiece:
        """Return a requested span for the engine, under the policies of the request and of the program."""
        options = replace(request.options, policies=(*request.options.policies, *self._policies))
        sampler, temperature, exact = self._sampler, request.temperature, generator.exact
        piece = generator.piece(options, sampler=sampler, temperature=temperature, scores_end=False)
        if exact is None or not exact.is_used(sampler, options, has_policies=False):
            return ForkPiece(piece)
        key = exact, (temperature_of(sampler) or 0.0) if temperature is None else float(temperature)
        if key not in self._choices:
            self._choices[key] = SpanChoice.rows(exact, generator.model, key[1])
        return ForkPiece(piece, SpanChoice(self._choices[key]))

    def _answer(self, view: ForkView) -> JournalEntry:
        """Return the answer to the request for which the model ran."""
        request, self._awaited = self._awaited, None

        def value() -> Any:
            if view.error is not None:
                raise view.error
            if isinstance(request, Wait):
                return self._values(request.names)
            assert isinstance(request, Gen)
            assert view.outcome is not None
            return self._generated_text(request, view.outcome)

        return self.journal.add(JournalEntry.of(repr(request), value))

    def _values(self, names: Sequence[str]) -> list[Any]:
        return [self.shared.get(name) for name in names]

    def _text_from(self, start: int) -> str:
        return self._model.tokenizer.text_bytes(self.token_ids[start:]).decode(errors="replace")

    def _generated_text(self, request: Gen, outcome: PieceOutcome) -> str:
        """Return the text of a generated span that has ended, and capture it if it has a name."""
        if outcome.error is not None:
            raise outcome.error
        text = self._text_from(outcome.start)
        constraint = self._generator.constraint if self._generator is not None else None
        told = ""
        if (
            outcome.reason == "length"
            and constraint is not None
            and not constraint.accepts(self.token_ids[outcome.start :])
        ):
            told = (
                f"expected a text that conforms to the constraint, but `max_tokens` or the context cut it to {shortened(repr(text))}. "
                "Raise `max_tokens`."
            )
        elif request.require_stop and outcome.stop is None:
            told = (
                f"expected a text that ends at {' or '.join(map(repr, request.options.stop_at))}, but it ended before ({outcome.reason}): "
                f"{shortened(repr(text))}. Raise `max_tokens`, or omit `require_stop`."
            )
        if told:
            raise IncompleteOutput(told, text, outcome.reason)
        if "substring_of" in request.given:
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

    def _check(self, label: Label) -> None:
        if not isinstance(label, Label):
            raise OptionError(f"expected a label that `label()` has returned, got {label!r}", "place")
        if any(cut < label.position for cut in self._cuts[label.num_cuts :]):
            raise ScriptError(
                f"expected a label of text that was not cut since, got {label!r}: the text before it was cut. Make a new one."
            )

    def _fork(self, entry: JournalEntry) -> ScriptDriver:
        fork = ScriptDriver(
            self._script, self._model, self.shared, self._sampler, self._policies, self.journal.fork(entry)
        )
        fork._choices = self._choices
        fork.token_ids, fork._kept, fork._cuts = [*self.token_ids], self._kept, [*self._cuts]
        return fork


def _substring(model: LanguageModel, *, text: str, mark: str, force: bool, end: EndMode) -> generate.Generator:
    return generate.fsm(model, substring(text, end=mark), force=force, end=end)


# Options of calls of generators that `gen` has, too.
_OF_CALLS = ("max_tokens", "min_tokens", "stop_at", "keep_stop", "stop_token_ids", "policies", "draft")
_CONSTRAINTS = ("regex", "choice", "json", "grammar", "substring_of")
# Options of calls of generators that `gen` does not have.
_NOT_OF_PIECES = {
    "heal": "A piece removes no token, as labels may point after it. End what `fixed` appends where a token may end, such as after a "
    "word, or encode it together with what follows: `fixed(text, following=label)`.",
    "guidance": "A fork has no second sequence. It is an option of a call of a generator: `continuous(generator)(result.state, "
    "guidance=...)` continues where a program has ended.",
    "thinking": "Write the thoughts as a piece of their own: `await gen(stop_at='</think>', keep_stop=True)`, then the answer.",
    "stop_in_prompt": "`text_since(label)` returns the text before it.",
    "on_progress": "`control.start(...).events()` yields what happens.",
    "sampler": "Give it to `control.run(..., sampler=...)`; `temperature=` changes it for a piece.",
    "rng": "Give it to `control.run(..., rng=...)`.",
}


async def fixed(text: str, *, following: Label | None = None) -> None:
    """Append a text. Consecutive texts are fed in one forward, with the token before them.

    Args:
        text: it is encoded at the end of the text so far, whose tokens do not change.
        following: a label; the text after it is cut first. Only the new tokens are fed.

    Raises:
        ScriptError: the label is after the end: the text before it was cut.
        TokenizerError: the text cannot be spelled.
    """
    check("text", text, isinstance(text, str), "a text")
    check("following", following, isinstance(following, Label | None), "a label that `label()` has returned")
    await _request(Fixed(text, following))


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
    min_tokens: int = 0,
    stop_token_ids: Sequence[int] = (),
    policies: Sequence[Policy[Any]] = (),
    temperature: float | None = None,
    name: str | None = None,
    force: bool = True,
    end: EndMode | None = None,
    require_stop: bool = False,
    draft: Any = None,
) -> str:
    """Generate a text and return it.

    Args:
        regex: a pattern that it matches.
        choice: the texts of which it is one, chosen as a whole where nothing acts on single tokens; see docs/choices.md.
        json: a JSON schema or a type that it validates against.
        grammar: a grammar, in the language of Lark, that accepts it.
        substring_of: a text that it is a part of; `substring_end` follows it, and is not returned.
        substring_end: the mark that ends a substring; if empty, it ends as `end` says.
        stop_at: a text, or several; the generated text ends exactly before the first of them.
        keep_stop: let it end exactly after the stop text instead.
        max_tokens: the most tokens, forced ones included.
        min_tokens: until it has this number of tokens, ends of text are masked if another token is allowed.
        stop_token_ids: tokens that end the text if it may end there, in addition to those of the model; they are not part of it.
        policies: policies of this text, in addition to those of `control.run`.
        temperature: used in place of the sampler's; 0 takes the most probable token.
        name: capture the text under this name.
        force: append text without a choice in one chunk instead of sampling it.
        end: how a constrained text ends, `"eos"` or `"free"`; see `generate.regex`. None is the default of its kind.
        require_stop: raise `IncompleteOutput` for a text that does not end at `stop_at`, which is returned otherwise.
        draft: the draft for speculative decoding, such as "lookup"; see docs/draft.md.

    Raises:
        OptionError: several constraints, or a value out of its range.
        UnknownOption: an option is unknown, or not available in a script, such as `heal` and `guidance`.
        IncompleteOutput: `max_tokens` or the context has cut a constrained text, or one with `require_stop` did not reach its stop.
        CheckFailed, DeadEnd, FSMError: the constraint cannot be satisfied. The text so far is kept.
    """
    own = {**locals()}
    options = Options.of({option: own[option] for option in _OF_CALLS})
    for option in ("regex", "grammar", "substring_of", "substring_end", "name"):
        is_omitted = own[option] is None and option != "substring_end"
        check(option, own[option], is_omitted or isinstance(own[option], str), "a text")
    advice = f"Write [{choice!r}] for a single option."
    check("choice", choice, not isinstance(choice, str), "a list of options", advice)
    own["choice"] = None if choice is None else texts_of(choice, "choice")
    given = {option: own[option] for option in _CONSTRAINTS if own[option] is not None}
    check_one_constraint(given)
    checked_bool(require_stop, "require_stop")
    check_one_of("end", end, (None, "eos", "free"))
    check_beside_stop(options.stop_at, require_stop=require_stop)
    is_real = isinstance(temperature, Real) and not isinstance(temperature, bool) and 0 <= temperature < 1e30
    check("temperature", temperature, temperature is None or is_real, "a number, 0 or more, or None")
    force = checked_bool(force, "force")
    return str(await _request(Gen(given, substring_end, temperature, name, force, end, require_stop, options)))


async def fork(count: int) -> int:
    """Continue as `count` forks, each with its own variables and random numbers; return the index of this one, from 0 on.

    Raises:
        ForkBudgetError: the budget of the program allows fewer.
        OptionError: `count` is not an int, 1 or more.
    """
    check_int("count", count, 1)
    return int(await _request(ForkInto(count)))


def label() -> Label:
    """Return the present end of the text as a position, for `fixed` and `text_since`."""
    driver = _driver()
    return driver.journal.once("label()", driver.label)


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
    raise ScriptStopped


class SharedVariables:
    """The variables that the forks of the running program have in common; see `Shared`."""

    def get(self, name: str) -> Any:
        """Return the value of a variable, None if it is missing."""
        return _shared(Shared.get, name)

    def version(self, name: str) -> int:
        """Return the version of a variable, 0 if it is missing."""
        return _shared(Shared.version, name)

    def set(self, name: str, value: Any) -> int:
        """Write a variable; return its version."""
        return _shared(Shared.set, name, value)

    def append(self, name: str, value: Any) -> int:
        """Append to the value of a variable; return its version."""
        return _shared(Shared.append, name, value)

    def cas(self, name: str, version: int, value: Any) -> Written:
        """Write a variable if its version is `version`; a missing variable is never written."""
        return _shared(Shared.cas, name, version, value)

    async def wait(self, *names: str) -> list[Any]:
        """Wait until all of some variables were written, and return the list of their values. A fork that waits costs nothing.

        Raises:
            DeadlockError: no fork is left that could write them.
        """
        return list(await _request(Wait(texts_of(names, "names"))))


shared = SharedVariables()


@coroutine
def _request(request: Request) -> Generator[Request, Any, Any]:
    _driver()
    return (yield request)


def _driver() -> ScriptDriver:
    try:
        return running_driver.get()
    except LookupError:
        raise ScriptError(
            "expected a script that `control.run` runs: this function works only in one. "
            "Write `async def script(): ...` and call `control.run(model, script, prompt)`."
        ) from None


def _shared(method: Callable[..., T], *arguments: Any) -> T:
    driver, name = _driver(), method.__name__
    act: Callable[[], T] = partial(getattr(driver.shared, name), *arguments)
    return driver.journal.once(f"shared.{name}({', '.join(map(repr, arguments))})", act)
