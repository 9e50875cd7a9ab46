"""`CompletionTree`: the completions of one prompt that part at even distances, all leaves one batch.

It is the tree of LLamaSharp's fork example: every leaf becomes two forks of itself after each `every` tokens. A parent and its
forks hold what they have in common once. Ends of text are not sampled, so all leaves have the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from outlines_cont.checks import checked_bool, is_int
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
    """A stretch of text between two forks.

    Attributes:
        path: which fork was taken at each parting, 0 or 1; empty at the root.
        token_ids: the ids of the stretch.
        text: what they spell; a character that a parting cuts belongs to the nodes after it.
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

    def take(self, token_id: int, data: bytes) -> None:
        self.node.token_ids.append(token_id)
        self.decoder, text = self.decoder.push(data)
        self.node.text += text


class CompletionTree:
    """A tree that grows one token per leaf and step.

    Attributes:
        prompt: the text at the root.
        root: the first stretch after it.
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
            model: what writes.
            prompt: where all completions begin.
            depth: tokens of each completion.
            every: tokens between two partings.
            seed: of the random numbers. Each leaf draws those of its path alone, so it is the text of a run of its own.
            sampler: `multinomial()` for None.
            distinct: let twins begin with different tokens.

        Raises:
            OptionError: `depth` or `every` is not an int, 1 or more, or there would be more than 1,024 leaves.
        """
        for name, value in (("depth", depth), ("every", every)):
            if not is_int(value, 1):
                raise OptionError(f"expected an int, 1 or more, as `{name}`, got {value!r}", name)
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
        """The ends of the tree as it stands, in order."""
        return list(_leaves(self.root))

    @property
    def kv_bytes(self) -> int:
        """Bytes of the keys, values and logits of all leaves after the last step."""
        return self._kv_bytes

    def text(self, leaf: TreeNode) -> str:
        """Return the whole completion that ends in `leaf`, the prompt included."""
        node, text = self.root, self.prompt + self.root.text
        for turn in leaf.path:
            node = node.children[turn]
            text += node.text
        return text

    def token_ids(self, leaf: TreeNode) -> list[int]:
        """Return the ids of that completion, without the prompt."""
        node, ids = self.root, [*self.root.token_ids]
        for turn in leaf.path:
            node = node.children[turn]
            ids += node.token_ids
        return ids

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
        for leaf, token_id in zip(
            first,
            executor.step([leaf.conversation for leaf in first], self._sampler, mask=self._allowed),
            strict=True,
        ):
            self._take(leaf, token_id)
        for leaf, twin in zip(first, self._leaves[1::2], strict=True) if apart else ():
            others = self._allowed & ~TokenSet.of(leaf.node.token_ids)
            self._take(twin, twin.conversation.step(self._sampler, mask=others))

    def _take(self, leaf: _Leaf, token_id: int) -> None:
        leaf.take(token_id, self._model.tokenizer.text_bytes([token_id]))
        self.num_sampled += 1


def _twins(leaf: _Leaf) -> list[_Leaf]:
    """Return two forks of a leaf, which ends."""
    leaf.node.children = [TreeNode((*leaf.node.path, turn)) for turn in range(2)]
    twins = [_Leaf(leaf.conversation.fork(), node, leaf.decoder) for node in leaf.node.children]
    leaf.conversation.close()
    return twins


def _leaves(node: TreeNode) -> Iterator[TreeNode]:
    if not node.children:
        yield node
    for child in node.children:
        yield from _leaves(child)
