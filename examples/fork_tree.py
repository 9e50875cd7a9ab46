"""A tree of completions: every leaf becomes two forks of itself after 16 tokens, and all leaves run in one batch.

What completions have in common is computed and held once. `python fork_tree.py tree.html` writes a page that shows it, too.
"""

import sys
from dataclasses import dataclass, field

from outlines_cont import BatchedExecutor, Conversation, SequenceState, TokenSet, models, samplers

PROMPT = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14.\nRecord: "
SAMPLER = samplers.multinomial()


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


def grow(model, prompt, depth=72, every=16, seed=0) -> tuple[Node, SequenceState]:
    """Return the root of a tree, and its leaves; the two leaves of a fork begin with different tokens, and no text ends."""
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
        state = SequenceState.stack([leaf.conversation.state for leaf in leaves])
    for node in nodes:
        node.text = shown(model.tokenizer.decode(node.token_ids))
    return root, state


def shown(text: str) -> str:
    """Return a text on one line; what cannot be printed is U+FFFD, as a character that a fork has cut."""
    return "".join("↵" if c == "\n" else c if c.isprintable() else "�" for c in text)


def lines(node: Node, indent: str = "", is_last: bool = True) -> list[str]:
    """Return the tree for a terminal, a line for each node."""
    below = indent + ("    " if is_last else "│   ")
    parts = [lines(child, below, child is node.children[-1]) for child in node.children]
    return [f"{indent}{'└── ' if is_last else '├── '}{node.text}", *(line for part in parts for line in part)]


def main() -> None:
    model = models.tiny()
    with model.meter() as meter:
        root, state = grow(model, PROMPT)
    print(shown(PROMPT), *lines(root), sep="\n")
    print(f"{len(state)} leaves, {meter.sampled_tokens} tokens sampled in {meter.forwards} forwards")
    if sys.argv[1:] and sys.argv[1].endswith(".html"):
        state.inspect(sys.argv[1])


if __name__ == "__main__":
    main()
