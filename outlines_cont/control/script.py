"""The functions that a script calls: `gen` and `fixed` append text, `fork` forks; `label`, `text_since`, `log`, `stop` and `shared` do not
need the model. A script is a coroutine that `control.run` runs without an event loop; only `gen`, `fixed`, `fork` and `shared.wait` can be
awaited in it. A fork runs it again, so it must be deterministic; forks have local variables of their own, and `shared` in common.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from types import coroutine
from typing import Any, NoReturn, TypeVar

from outlines_cont.checks import check, check_int, knows_its_options
from outlines_cont.control.script_driver import (
    Fixed,
    ForkInto,
    Gen,
    Label,
    Request,
    ScriptDriver,
    ScriptStopped,
    running_driver,
)
from outlines_cont.errors import ScriptError
from outlines_cont.generation.options import Options, texts_of
from outlines_cont.policies.constraint import EndMode
from outlines_cont.policies.policy import Policy
from outlines_cont.programs.fork_program import Wait
from outlines_cont.programs.variables import Shared, Written

T = TypeVar("T")

# Options of calls of generators that `gen` has, too.
_OF_CALLS = ("max_tokens", "min_tokens", "stop_at", "keep_stop", "stop_token_ids", "policies", "draft")
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
        choice: the texts of which it is one.
        json: a JSON schema or a type that it validates against.
        grammar: a grammar, in the language of Lark, that accepts it.
        substring_of: a text that it is a part of; `substring_end` follows it, and is not returned.
        substring_end: the mark that ends a substring; empty for the model's own end of text.
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
    given = {**locals()}
    check(
        "choice", choice, not isinstance(choice, str), "a list of options", f"Write [{choice!r}] for a single option."
    )
    given["choice"] = None if choice is None else texts_of(choice, "choice")
    options = Options.of({name: given.pop(name) for name in _OF_CALLS})
    return str(await _request(Gen(**given, options=options)))


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
