"""`command`: registers a function, whose argument is a dataclass of options, as a command of typer, with an option or argument for each
field. Errors of these packages are printed as one line, with exit status 2; Ctrl-C prints a message, a closed output pipe nothing; other
exceptions keep their traceback. Also in this file: schema warnings without source lines, and files of pictures.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer

from outlines_cont.errors import OutlinesContError, shortened
from outlines_cont.pipelines.outcome import OutputError, SetupError

FAILED_ROWS, UNUSABLE, INTERRUPTED = 1, 2, 130
_LONGEST_ERROR = 600

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Options = TypeVar("Options")
Run = Callable[[Options], None]


def command(
    kind: type[Options],
    interrupted: Callable[[Options], str] = lambda options: "Interrupted.",
    **settings: Any,
) -> Callable[[Run[Options]], Callable[..., None]]:
    """Return a decorator that registers a function of one dataclass of options as a command of `app`.

    Args:
        kind: the dataclass; a field is annotated with its `typer.Option` or `typer.Argument`, whose help is the description of the field in
            the docstring; `given` has the names of the options on the command line.
        interrupted: returns the message after Ctrl-C.
        **settings: of the command, such as its `epilog`.
    """

    def decorated(run: Run[Options]) -> Callable[..., None]:
        def called(context: typer.Context, **values: Any) -> None:
            if "given" in hints:
                sources = {name: context.get_parameter_source(name) for name in values}
                values["given"] = frozenset(
                    name for name, source in sources.items() if source and source.name != "DEFAULT"
                )
            options = kind(**values)
            with one_line_errors(lambda: interrupted(options)):
                run(options)

        hints = _typed_options(kind)
        fields = [field for field in inspect.signature(kind).parameters.values() if field.name != "given"]
        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
        called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [context, *(field.replace(annotation=hints[field.name]) for field in fields)]
        )
        called.__name__, called.__doc__ = run.__name__, run.__doc__
        registered: Callable[..., None] = app.command(**settings)(called)
        return registered

    return decorated


def _typed_options(kind: type) -> dict[str, Any]:
    """Return the annotation of each field; the help of an option is the description of the field in the docstring of the class."""
    hints = get_type_hints(kind, include_extras=True)
    for text in re.split(r"\n {4}(?=\w)", inspect.cleandoc(kind.__doc__ or "").partition("Attributes:")[2]):
        name, colon, described = text.partition(": ")
        if colon:
            plain, option = get_args(hints[name])
            option = copy(option)
            option.help = " ".join(described.split())
            hints[name] = Annotated[plain, option]
    return hints


@contextmanager
def one_line_errors(interrupted: Callable[[], str]) -> Iterator[None]:
    """Print errors of these packages as one line, and exit with a status."""
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
        typer.echo(f"Error: {one_line(str(error))}", err=True)
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
