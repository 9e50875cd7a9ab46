"""What the commands share of the console and of files: errors as one line with exit status 2 (a message after Ctrl-C, nothing for a closed
output pipe, a traceback for other exceptions), schema warnings without source lines, the value of `--sampler`, files of pictures, and
`demo_output`, the file of the demo.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, get_type_hints

import typer

from outlines_cont.checks import is_number
from outlines_cont.errors import OutlinesContError, shortened
from outlines_cont.pipelines.outcome import OutputError, SetupError

FAILED_ROWS, UNUSABLE, INTERRUPTED = 1, 2, 130
SAMPLER_FORMS = "greedy, multinomial, or multinomial with options such as multinomial(temperature=0.7, top_p=0.9)"
_LONGEST_ERROR = 600
_FIELDS_OF_DEMO = ({"text", "kind", "record", "due"}, {"receipt", "expected", "record"})


@contextmanager
def one_line_errors(interrupted: Callable[[], str], flags: Collection[str] = ()) -> Iterator[None]:
    """Print errors of these packages as one line, in the words of a command with these `flags`, and exit with a status."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(interrupted(), err=True)
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The output is a closed pipe, as after `head`. Nothing may be flushed into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(FAILED_ROWS) from None
    except Exception as error:
        from fsm import FSMError

        if not isinstance(error, OutlinesContError | FSMError):
            raise
        typer.echo(f"Error: {one_line(in_words_of_shell(str(error), flags))}", err=True)
        raise typer.Exit(UNUSABLE) from None


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print each `SchemaWarning` once, without a source line."""
    from fsm import SchemaWarning

    show_other, printed = warnings.showwarning, set[str]()

    def show(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
        if not issubclass(category, SchemaWarning):
            show_other(message, category, *where, **options)
        elif str(message) not in printed:
            printed.add(str(message))
            typer.echo(f"Warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", SchemaWarning)
        warnings.showwarning = show
        yield


def one_line(text: str) -> str:
    """Return a text as one line of at most 600 characters."""
    return shortened(" ".join(text.split()), _LONGEST_ERROR)


def flags_of(options: type) -> frozenset[str]:
    """Return the names of the fields of a command that are flags, such as `max_tokens` for `--max-tokens`."""
    hints = get_type_hints(options, include_extras=True)
    return frozenset(
        name
        for name, hint in hints.items()
        if any(isinstance(one, typer.models.OptionInfo) for one in getattr(hint, "__metadata__", ()))
    )


_MODEL = re.compile(r"<\w*Model [^>]*>")
_WITH_FLAG = re.compile(r"`\w+(?:=\w+)?` \((--[a-z-]+)\)")  # `resume=True` (--resume)
_WITH_SETTING = re.compile(r"`\w+=\.\.\.`, on the command line `(--set [^`]+)`")
_NAMED = re.compile(r"`([a-z_]+)(?:=(?:True|\.\.\.))?`")
_SENTENCE = re.compile(r"(?<=[.;!?])\s+(?=[A-Z`])")
_PYTHON = re.compile(
    r"\b(?:fsm|generate|samplers|policies|models|generator|chat|state)\.\w|(?<!\bdefault)(?<=\w)\(|\b\w+=[\w\['\"{.]"
)


def in_words_of_shell(message: str, flags: Collection[str]) -> str:
    """Return a message of this package for who has typed a command with these flags: options are flags, and advice for Python goes."""

    def flag(found: re.Match[str]) -> str:
        return f"`--{found[1].replace('_', '-')}`" if found[1] in flags else found[0]

    message = _WITH_SETTING.sub(r"`\1`", _WITH_FLAG.sub(r"`\1`", _MODEL.sub("this model", message)))
    first, *others = _SENTENCE.split(_NAMED.sub(flag, message))
    return " ".join([first, *(one for one in others if "`--" in one or _PYTHON.search(one) is None)])


def check_picture(path: Path | None, option: str, *suffixes: str) -> None:
    """Raise `SetupError` for a picture whose name does not end in one of `suffixes`."""
    if path is not None and path.suffix.lower() not in suffixes:
        expected = f"expected a file that ends in {' or '.join(suffixes)} as --{option}, got {str(path)!r}"
        raise SetupError(f"{expected}. Browsers show such files, and print them.")


def write_picture(text: str, path: Path) -> None:
    """Write a picture; raise `OutputError` if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"expected to write the picture, but {str(path)!r} cannot be written: {error.strerror}"
        ) from error


def parse_sampler(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of a sampler; raise `SetupError` if it is not one of `SAMPLER_FORMS`."""
    expected = f"expected {SAMPLER_FORMS} as --sampler, got {text!r}"
    try:
        node = ast.parse(text.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
        if not isinstance(call.func, ast.Name) or call.func.id not in ("greedy", "multinomial") or call.args:
            raise ValueError
        options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, SyntaxError) as error:
        raise SetupError(expected) from error
    if options and call.func.id == "greedy":
        raise SetupError(f"{expected}: greedy has no options")
    wrong = next((name for name, value in options.items() if not is_number(value)), None)
    if wrong is not None or "n" in options:
        raise SetupError(
            f"expected numbers as options of --sampler, and no `n` (each row has one record), got {text!r}"
        )
    return call.func.id, options


@contextmanager
def demo_output(path: Path) -> Iterator[TextIO]:
    """Yield a file that replaces `path` when the block ends (atomic), and is removed when it fails.

    Before the block `SetupError` is raised if the file cannot be written, or another file would be replaced.
    """
    from outlines_cont.pipelines.output import check_suffix

    check_suffix(path)
    target = path.resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.exists() and not _is_of_demo(target):
            raise SetupError(
                f"expected a new file or an earlier output of the demo, but {str(path)!r} is something else and would be lost. "
                "Name another file with --output."
            )
        file = part.open("x", encoding="utf-8", newline="\n")
    except OSError as error:
        raise SetupError(
            f"expected an output that can be written, but {str(path)!r}: {error.strerror}. Name another file with --output."
        ) from error
    try:
        with file:
            yield file
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _is_of_demo(path: Path) -> bool:
    """Whether `path` is an empty file, or one whose first line the demo may have written."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        first = file.readline()
    try:
        return not first or any(json.loads(first).keys() >= fields for fields in _FIELDS_OF_DEMO)
    except (ValueError, AttributeError, RecursionError):
        return False
