"""`CompletionTree`: a binary tree of completions of one prompt, as in LLamaSharp's fork example: after each `every` tokens every leaf is
replaced by two forks of itself. All leaves run as one batch, and share the KV cache of common prefixes. At most 1,024 leaves; ends of text
are not sampled, so all leaves have the same number of tokens. `to_text`, `to_svg`, `to_html`: the tree as text with box characters, as an
SVG picture, and as nested HTML lists; control characters are replaced in all three, markup is escaped in the last two.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape

from outlines_cont.checks import check_int, checked_bool
from outlines_cont.conversation.conversation import Conversation
from outlines_cont.conversation.executor import BatchedExecutor
from outlines_cont.errors import OptionError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.branch import TokenSet
from outlines_cont.policies.stop import FreeText
from outlines_cont.samplers import multinomial
from outlines_cont.sampling.params import Sampler
from outlines_cont.streams.text_decoder import TextDecoder

_MAX_LEAVES = 1024
_SIGNS = {"\n": "↵", "\t": "→", "\r": "←"}
_WRAP, _COLUMN, _LINE, _GAP, _LEFT, _TOP = 32, 300, 16, 12, 20, 56
_SVG_STYLE = (
    "text{font:13px ui-monospace,monospace;fill:#1f2328;white-space:pre}.p{font-weight:bold}"
    "path{fill:none;stroke:#2f6db3;stroke-width:1.3}"
)
_HTML_STYLE = (
    "body{font:14px/1.5 ui-monospace,monospace;margin:2em;color:#1f2328;background:#fff}"
    "h1{font-size:1.1em}ul{list-style:none;margin:0;padding-left:1.2em;border-left:1px solid #2f6db3}"
    "li{padding:.15em 0 .15em .6em}"
)


@dataclass(slots=True, eq=False)
class TreeNode:
    """A node of the tree: the tokens between two forks, and their text.

    Attributes:
        path: the index of the fork, 0 or 1, at each branching; empty at the root.
        text: of the tokens; a character that a branching cuts belongs to the nodes after it.
        children: two, or none for a leaf.
    """

    path: tuple[int, ...] = ()
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    children: list[TreeNode] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Leaf:
    conversation: Conversation
    node: TreeNode
    decoder: TextDecoder


class CompletionTree:
    """A binary tree of completions that grows by one token per leaf and step.

    Attributes:
        prompt: the text at the root.
        root: the first node after it.
        num_sampled: tokens that were sampled so far, over all leaves.
        kv_bytes: bytes of the keys, values and logits of all leaves after the last step.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: str,
        *,
        depth: int = 72,
        every: int = 16,
        seed: int = 0,
        sampler: Sampler | None = None,
        distinct: bool = False,
    ) -> None:
        """Plan a tree; nothing runs before `grow`.

        Args:
            model: the language model.
            prompt: the text with which all completions begin.
            depth: tokens of each completion.
            every: tokens between two branchings.
            seed: of the random numbers. Those of a leaf depend on its path alone, so its text is that of a run of its own.
            sampler: `multinomial()` for None.
            distinct: let the two forks of a leaf begin with different tokens.

        Raises:
            OptionError: `depth` or `every` is not an int, 1 or more, or there would be more than 1,024 leaves.
        """
        _check_size(depth, every)
        self._distinct = checked_bool(distinct, "distinct")
        self.prompt = prompt
        self.root = TreeNode()
        self.num_sampled = self.kv_bytes = 0
        self._model = model
        self._depth, self._every, self._seed = depth, every, seed
        self._sampler = sampler if sampler is not None else multinomial()
        self._allowed = FreeText.of_model(model).token_ids & ~TokenSet.of(model.eos_token_ids)

    @property
    def leaves(self) -> list[TreeNode]:
        """The present leaves of the tree, in order."""
        found, below = [], [self.root]
        while below:
            node = below.pop()
            below += reversed(node.children)
            found += [] if node.children else [node]
        return found

    def text(self, leaf: TreeNode) -> str:
        """Return the whole completion that ends in `leaf`, the prompt included."""
        return self.prompt + "".join(node.text for node in self._nodes_to(leaf))

    def token_ids(self, leaf: TreeNode) -> list[int]:
        """Return the ids of that completion, without the prompt."""
        return [token_id for node in self._nodes_to(leaf) for token_id in node.token_ids]

    def _nodes_to(self, leaf: TreeNode) -> list[TreeNode]:
        nodes = [self.root]
        for turn in leaf.path:
            nodes.append(nodes[-1].children[turn])
        return nodes

    def grow(self) -> Iterator[int]:
        """Grow to the end, and yield the number of each step after it. Cost: `depth` forwards."""
        with BatchedExecutor(self._model, kept_logits_bytes=0) as executor:
            conversation = executor.create(self.prompt, seed=self._seed)
            self.root, self.num_sampled = TreeNode(), 0
            leaves = [_Leaf(conversation, self.root, TextDecoder())]
            for step in range(self._depth):
                executor.infer()
                has_forked = step > 0 and step % self._every == 0
                if has_forked:
                    leaves = [fork for leaf in leaves for fork in _forks(leaf)]
                self._sample(executor, leaves, is_distinct=has_forked and self._distinct)
                self.kv_bytes = executor.kv_bytes
                if step == self._depth - 1:
                    for leaf in leaves:
                        leaf.node.text += leaf.decoder.flush()
                yield step

    def _sample(self, executor: BatchedExecutor, leaves: list[_Leaf], *, is_distinct: bool) -> None:
        first = leaves[::2] if is_distinct else leaves
        token_ids = executor.step([leaf.conversation for leaf in first], self._sampler, mask=self._allowed)
        for leaf, token_id in zip(first, token_ids, strict=True):
            self._take(leaf, token_id)
        for leaf, fork in zip(first, leaves[1::2], strict=True) if is_distinct else ():
            others = self._allowed & ~TokenSet.of(leaf.node.token_ids)
            self._take(fork, fork.conversation.step(self._sampler, mask=others))

    def _take(self, leaf: _Leaf, token_id: int) -> None:
        leaf.node.token_ids.append(token_id)
        leaf.decoder, text = leaf.decoder.push(self._model.tokenizer.text_bytes([token_id]))
        leaf.node.text += text
        self.num_sampled += 1


def _check_size(depth: int, every: int) -> None:
    for name, value in (("depth", depth), ("every", every)):
        check_int(name, value, 1)
    num_forks = (depth - 1) // every
    if num_forks > _MAX_LEAVES.bit_length() - 1:
        raise OptionError(
            f"expected at most {_MAX_LEAVES:,} leaves, but depth={depth} and every={every} make 2 ** {num_forks}. "
            "Raise `every`, or lower `depth`.",
            "every",
        )


def _forks(leaf: _Leaf) -> list[_Leaf]:
    """Return two forks of a leaf, whose conversation is closed."""
    leaf.node.children = [TreeNode((*leaf.node.path, turn)) for turn in range(2)]
    forks = [_Leaf(leaf.conversation.fork(), node, leaf.decoder) for node in leaf.node.children]
    leaf.conversation.close()
    return forks


def to_text(tree: CompletionTree) -> str:
    """Return the tree for a terminal, one line per node, the prompt first."""
    return "\n".join([shown(tree.prompt), *_lines(tree.root, "", last=True)])


def to_svg(tree: CompletionTree) -> str:
    """Return the tree as an SVG picture, one column per level, from left to right."""
    parts: list[str] = []
    height = _draw(tree.root, 0, _TOP, parts)[1]
    levels = max(len(leaf.path) for leaf in tree.leaves) + 1
    width = max(_LEFT + levels * _COLUMN, 40 + 8 * len(shown(tree.prompt)))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    title = f'<text class="p" x="{_LEFT}" y="28">{escape(shown(tree.prompt))}</text>'
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, f"<style>{_SVG_STYLE}</style>", background, title, *parts, "</svg>"]) + "\n"


def to_html(tree: CompletionTree) -> str:
    """Return the tree as an HTML page of nested lists, without scripts."""
    title = escape(shown(tree.prompt))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_HTML_STYLE}</style></head>\n<body><h1>{title}</h1>\n{_list([tree.root])}</body></html>\n"
    )


def shown(text: str) -> str:
    """Return a text on one line, with signs in place of control characters and marks of the direction of writing."""
    return "".join(_SIGNS.get(c) or (c if _is_plain(c) else "�") for c in text)


def _is_plain(character: str) -> bool:
    category = unicodedata.category(character)
    return category not in ("Zl", "Zp") and (not category.startswith("C") or character == "\u200d")


def _lines(node: TreeNode, indent: str, *, last: bool) -> Iterator[str]:
    yield f"{indent}{'└── ' if last else '├── '}{shown(node.text)}"
    for child in node.children:
        yield from _lines(child, indent + ("    " if last else "│   "), last=child is node.children[-1])


def _list(nodes: list[TreeNode]) -> str:
    items = (f"<li>{escape(shown(node.text))}{_list(node.children) if node.children else ''}</li>" for node in nodes)
    return "<ul>\n" + "\n".join(items) + "\n</ul>"


def _draw(node: TreeNode, level: int, top: int, parts: list[str]) -> tuple[int, int]:
    """Draw a node and its descendants; return the vertical positions of its centre, and of its lower end."""
    lines = textwrap.wrap(shown(node.text), _WRAP, drop_whitespace=False, replace_whitespace=False) or [""]
    needed = len(lines) * _LINE + _GAP
    centres, bottom = [], top
    for child in node.children:
        centre, bottom = _draw(child, level + 1, bottom, parts)
        centres.append(centre)
    bottom = max(bottom, top + needed)
    middle = (centres[0] + centres[-1]) // 2 if centres else (top + bottom - _GAP) // 2
    x = _LEFT + level * _COLUMN
    first = middle - (len(lines) - 1) * _LINE // 2
    for number, line in enumerate(lines):
        parts.append(f'<text x="{x}" y="{first + number * _LINE + 4}">{escape(line)}</text>')
    end, target = x + max(map(len, lines)) * 8 + 4, x + _COLUMN - 6
    for centre in centres:
        bend = (end + target) // 2
        parts.append(f'<path d="M{end},{middle} C{bend},{middle} {bend},{centre} {target},{centre}"/>')
    return middle, bottom
