"""`grow`: the command `outlines-cont tree`: grows a `CompletionTree`, redrawn on a terminal after each step, printed once elsewhere, and on
request written as SVG or HTML.
"""

from __future__ import annotations

import time

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from outlines_cont.cli.command import check_picture, write_picture
from outlines_cont.cli.model import load_model
from outlines_cont.cli.options import TreeOptions
from outlines_cont.conversation.tree import CompletionTree, to_html, to_svg, to_text
from outlines_cont.pipelines.rows.errors import SetupError

_PROMPT = "Not many people know that"
_PROMPT_OF_BUNDLED = (
    "Message: Please send 12 desk lamps to Porto.\nRecord: "  # its training data are such messages and records
)


def grow(options: TreeOptions) -> None:
    """Grow a tree, show it, and write a picture if there is a file for it."""
    prompt = options.prompt
    if prompt is None:
        prompt = _PROMPT_OF_BUNDLED if options.model is None else _PROMPT
    if not prompt:
        raise SetupError("expected a text that the tree begins with as PROMPT, got an empty one")
    check_picture(options.output, "output", ".svg", ".html")
    model = load_model(options.model, options.device, options.dtype, num_rows=4)
    tree = CompletionTree(
        model, prompt, depth=options.depth, every=options.every, seed=options.seed, distinct=options.distinct
    )
    started = time.monotonic()
    with model.meter() as meter:
        show_growing(tree, Console())
    leaves, seconds = len(tree.leaves), time.monotonic() - started
    typer.echo(
        f"{leaves} leaves, {tree.num_sampled} tokens sampled in {meter.forwards} forwards (one by one: "
        f"{leaves * options.depth:,}), {seconds:.1f} s; {tree.kv_bytes / 1e6:.1f} MB of keys and values"
    )
    if options.output is not None:
        is_svg = options.output.suffix.lower() == ".svg"
        write_picture(to_svg(tree) if is_svg else to_html(tree), options.output)
        typer.echo(f"Picture: {options.output}")


def show_growing(tree: CompletionTree, console: Console) -> None:
    """Grow a tree; show it after every step on a terminal, once elsewhere."""
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
    # `Text` is not read as markup.
    return Text(to_text(tree), no_wrap=True, overflow="ellipsis")
