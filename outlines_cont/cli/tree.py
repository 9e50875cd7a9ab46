"""The command `outlines-cont tree`: the tree of completions, growing on a terminal, and as an SVG or HTML file."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from outlines_cont.conversation.tree import CompletionTree
from outlines_cont.conversation.tree_picture import to_html, to_svg, to_text
from outlines_cont.pipelines.rows.errors import OutputError, SetupError

_PICTURES = {".svg": to_svg, ".html": to_html}


def check_options(prompt: str, path: Path | None) -> None:
    """Raise `SetupError` for an empty prompt, and for a file that is neither SVG nor HTML."""
    if not prompt:
        raise SetupError("expected a text that the tree begins with as PROMPT, got an empty one")
    if path is not None and path.suffix.lower() not in _PICTURES:
        raise SetupError(f"expected a file that ends in .svg or .html as --output, got {str(path)!r}")


def show_growing(tree: CompletionTree, console: Console) -> None:
    """Grow a tree; on a terminal it is shown at every step, elsewhere once."""
    if not console.is_terminal:
        for _ in tree.grow():
            pass
        console.print(_picture(tree), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for _ in tree.grow():
            live.update(_picture(tree), refresh=True)
    console.print(_picture(tree))


def write_picture(tree: CompletionTree, path: Path) -> None:
    """Write the tree as SVG or HTML, by the end of the name.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        path.write_text(_PICTURES[path.suffix.lower()](tree), encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"expected to write the tree, but {str(path)!r} cannot be written: {error.strerror}"
        ) from error


def _picture(tree: CompletionTree) -> Text:
    # A line of the tree is one line of the terminal; a text, so nothing in it is read as markup.
    return Text(to_text(tree), no_wrap=True, overflow="ellipsis")
