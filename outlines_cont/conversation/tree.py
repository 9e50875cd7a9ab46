"""`CompletionTree`: a binary tree of completions of one prompt: after each `every` tokens every leaf is replaced by two forks of
itself. All leaves run as one batch, and share the KV cache of common prefixes. At most 1,024 leaves; ends of text are not sampled, so
all leaves have the same number of tokens.

It is the tree of LLamaSharp's fork example.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from outlines_cont.checks import check_int, checked_bool
from outlines_cont.conversation.conversation import Conversation
from outlines_cont.conversation.executor import BatchedExecutor
from outlines_cont.errors import OptionError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.branch import TokenSet
from outlines_cont.samplers import multinomial
from outlines_cont.sampling.sampler import Sampler
from outlines_cont.streams.text_decoder import TextDecoder

_MAX_LEAVES = 1024


@dataclass(slots=True, eq=False)
class TreeNode:
    """A node of the tree: the run of tokens between two forks, and its text.

    Attributes:
        path: which fork was taken at each branching, 0 or 1; empty at the root.
        text: what the ids spell; a character that a branching cuts belongs to the nodes after it.
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
            seed: of the random numbers. Each leaf draws those of its path alone, so it is the text of a run of its own.
            sampler: `multinomial()` for None.
            distinct: make the two forks of a leaf begin with different tokens.

        Raises:
            OptionError: `depth` or `every` is not an int, 1 or more, or there would be more than 1,024 leaves.
        """
        for name, value in (("depth", depth), ("every", every)):
            check_int(name, value, 1)
        checked_bool(distinct, "distinct")
        partings = (depth - 1) // every
        if partings > _MAX_LEAVES.bit_length() - 1:
            raise OptionError(
                f"expected at most {_MAX_LEAVES:,} leaves, but depth={depth} and every={every} make 2 ** {partings}. "
                "Raise `every`, or lower `depth`.",
                "every",
            )
        self.prompt = prompt
        self.root = TreeNode()
        self.num_sampled = 0
        self._model = model
        self._depth, self._every, self._seed, self._distinct = depth, every, seed, distinct
        self._sampler = sampler if sampler is not None else multinomial()
        tokens = model.tokenizer.token_bytes[: model.vocab_size]
        self._allowed = TokenSet.of(i for i, data in enumerate(tokens) if data and i not in model.eos_token_ids)
        self._leaves: list[_Leaf] = []
        self._kv_bytes = 0

    @property
    def leaves(self) -> list[TreeNode]:
        """The present leaves of the tree, in order."""
        found, below = [], [self.root]
        while below:
            node = below.pop()
            below += reversed(node.children)
            found += [] if node.children else [node]
        return found

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys, values and logits of all leaves after the last step."""
        return self._kv_bytes

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
            self._leaves = [_Leaf(conversation, self.root, TextDecoder())]
            for step in range(self._depth):
                executor.infer()
                parts = step > 0 and step % self._every == 0
                if parts:
                    self._leaves = [twin for leaf in self._leaves for twin in _twins(leaf)]
                self._sample(executor, apart=parts and self._distinct)
                self._kv_bytes = executor.kv_bytes
                if step == self._depth - 1:
                    for leaf in self._leaves:
                        leaf.node.text += leaf.decoder.flush()
                yield step
        self._leaves = []

    def _sample(self, executor: BatchedExecutor, *, apart: bool) -> None:
        first = self._leaves[::2] if apart else self._leaves
        token_ids = executor.step([leaf.conversation for leaf in first], self._sampler, mask=self._allowed)
        for leaf, token_id in zip(first, token_ids, strict=True):
            self._take(leaf, token_id)
        for leaf, twin in zip(first, self._leaves[1::2], strict=True) if apart else ():
            others = self._allowed & ~TokenSet.of(leaf.node.token_ids)
            self._take(twin, twin.conversation.step(self._sampler, mask=others))

    def _take(self, leaf: _Leaf, token_id: int) -> None:
        leaf.node.token_ids.append(token_id)
        leaf.decoder, text = leaf.decoder.push(self._model.tokenizer.text_bytes([token_id]))
        leaf.node.text += text
        self.num_sampled += 1


def _twins(leaf: _Leaf) -> list[_Leaf]:
    """Return two forks of a leaf, whose conversation is closed."""
    leaf.node.children = [TreeNode((*leaf.node.path, turn)) for turn in range(2)]
    twins = [_Leaf(leaf.conversation.fork(), node, leaf.decoder) for node in leaf.node.children]
    leaf.conversation.close()
    return twins
