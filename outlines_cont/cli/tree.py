"""`show_growing`: the tree of `outlines-cont tree`, redrawn on a terminal after each step, printed once elsewhere."""

from __future__ import annotations

from rich.console import Console
from rich.live import Live
from rich.text import Text

from outlines_cont.conversation.tree import CompletionTree, to_text


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


def _picture(tree: CompletionTree) -> Text:
    # A line of the tree is one line of the terminal; a text, so nothing in it is read as markup.
    return Text(to_text(tree), no_wrap=True, overflow="ellipsis")
