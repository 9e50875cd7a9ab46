"""A tree of completions: every leaf becomes two forks of itself after 16 tokens, and all leaves run in one batch.

What completions have in common is computed and held once. `python fork_tree.py tree.svg` draws the tree, too.
"""

import sys
import textwrap
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from outlines_cont import BatchedExecutor, Conversation, TokenSet, models, samplers

PROMPT = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14.\nRecord: "
SAMPLER = samplers.multinomial()
# Of the picture: characters in a line, and points of a column, a line and a gap.
WRAP, COLUMN, LINE, GAP = 32, 300, 16, 12


@dataclass
class Node:
    """The tokens between two forks; the conversation runs while the node is a leaf."""

    conversation: Conversation
    token_ids: list[int] = field(default_factory=list)
    children: list["Node"] = field(default_factory=list)
    text: str = ""

    def split(self) -> list["Node"]:
        """Become two leaves."""
        self.children = [Node(fork) for fork in self.conversation.fork(2)]
        self.conversation.close()
        return self.children


def grow(model, prompt, depth=72, every=16, seed=0) -> tuple[Node, list[Node]]:
    """Return the root and the leaves of a tree; the two leaves of a fork begin with different tokens, and no text ends."""
    written = TokenSet.of([i for i, data in enumerate(model.tokenizer.token_bytes) if data])
    with BatchedExecutor(model, seed=seed, kept_logits_bytes=0) as executor:
        root = Node(executor.create(prompt))
        nodes = leaves = [root]
        for step in range(depth):
            executor.infer()
            first, second = leaves, []
            if step and step % every == 0:
                leaves = [fork for leaf in leaves for fork in leaf.split()]
                nodes, first, second = nodes + leaves, leaves[::2], leaves[1::2]
            token_ids = executor.step([leaf.conversation for leaf in first], SAMPLER, mask=written)
            for leaf, token_id in zip(first, token_ids, strict=True):
                leaf.token_ids.append(token_id)
            for leaf, token_id in zip(second, token_ids, strict=False):
                others = written & ~TokenSet.of([token_id])
                leaf.token_ids.append(leaf.conversation.step(SAMPLER, mask=others))
    for node in nodes:
        node.text = shown(model.tokenizer.decode(node.token_ids))
    return root, leaves


def shown(text: str) -> str:
    """Return a text on one line; what cannot be printed is U+FFFD, as a character that a fork has cut."""
    return "".join("↵" if c == "\n" else c if c.isprintable() else "�" for c in text)


def lines(node: Node, indent: str = "", is_last: bool = True) -> list[str]:
    """Return the tree for a terminal, a line for each node."""
    below = indent + ("    " if is_last else "│   ")
    parts = [lines(child, below, child is node.children[-1]) for child in node.children]
    return [f"{indent}{'└── ' if is_last else '├── '}{node.text}", *(line for part in parts for line in part)]


def draw(node: Node, x: int, top: int, out: list[str]) -> tuple[int, int]:
    """Draw a node and what follows it as SVG; return the heights of its middle and of its lower end."""
    wrapped = textwrap.wrap(node.text, WRAP, drop_whitespace=False) or [""]
    middles, bottom = [], top
    for child in node.children:
        middle, bottom = draw(child, x + COLUMN, bottom, out)
        middles.append(middle)
    bottom = max(bottom, top + len(wrapped) * LINE + GAP)
    middle = (middles[0] + middles[-1]) // 2 if middles else (top + bottom - GAP) // 2
    first = middle - (len(wrapped) - 1) * LINE // 2 + 4
    out += [f'<text x="{x}" y="{first + i * LINE}">{escape(line)}</text>' for i, line in enumerate(wrapped)]
    start, end = x + 8 * max(map(len, wrapped)) + 4, x + COLUMN - 6
    bend = (start + end) // 2
    out += [f'<path d="M{start},{middle} C{bend},{middle} {bend},{to} {end},{to}"/>' for to in middles]
    return middle, bottom


def to_svg(root: Node, prompt: str) -> str:
    """Return a picture of the tree, a column for each level, from left to right."""
    out = [f'<text x="20" y="28" font-weight="bold">{escape(shown(prompt))}</text>']
    _, height = draw(root, 20, 56, out)
    levels, node = 1, root
    while node.children:
        levels, node = levels + 1, node.children[0]
    width = max(20 + levels * COLUMN, 40 + 8 * len(prompt))
    style = "text{font:13px monospace;white-space:pre}path{fill:none;stroke:#2f6db3}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
    return "\n".join(
        [head, f"<style>{style}</style>", '<rect width="100%" height="100%" fill="white"/>', *out, "</svg>\n"]
    )


def main() -> None:
    model = models.tiny()
    with model.meter() as meter:
        root, leaves = grow(model, PROMPT)
    print(shown(PROMPT), *lines(root), sep="\n")
    print(f"{len(leaves)} leaves, {meter.sampled_tokens} tokens sampled in {meter.forwards} forwards")
    if sys.argv[1:] and sys.argv[1].endswith(".svg"):
        Path(sys.argv[1]).write_text(to_svg(root, PROMPT), encoding="utf-8")


if __name__ == "__main__":
    main()
