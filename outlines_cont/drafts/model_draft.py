"""`ModelDraft`: speculative decoding with a smaller model of the same vocabulary, which drafts for all rows of a batch in common
forwards, until a further token no longer pays. It draws under the mask of the row, by its sampler and random numbers, so that drafts are
often right (the most probable token in place of a user's own sampler or warpers, and of Mirostat); no text depends on them.

Leviathan, Kalman and Matias 2023, arXiv:2211.17192, without their rejection step: the target model draws each token with the random
number that it would have used anyway. Draft models whose KV cache cannot be cut (recurrent ones) are refused.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from outlines_cont.drafts.draft_rows import DraftRows, ReadTokens
from outlines_cont.engine.drawing.draw_plan import DrawPlans
from outlines_cont.engine.drawing.drawing import Drawing
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.engine.guessing.accept_rate import Graded
from outlines_cont.engine.guessing.row_draft import Wish
from outlines_cont.errors import UnsupportedModel, VocabularyMismatch
from outlines_cont.interfaces import LanguageModel
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet

_KIND, _EXPECTED = "model", 0.7
# A guess is as sure as it is probable to the draft; for each grade of that the share that is right, as long as nothing is known.
_GRADES, _SHARES = (0.3, 0.6, 0.85, 0.97), (0.3, 0.5, 0.7, 0.85, 0.95)


class ModelDraft:
    """A drafter with a model, whose forwards count in its own meters; ids from `vocab_size` of the target model on are never drafted."""

    def __init__(self, model: LanguageModel, vocab_size: int) -> None:
        self.model = model
        self._vocab_size = vocab_size
        self._groups: list[DraftRows] = []
        self._masker = Masker()
        self._plans = DrawPlans()
        self.has_warned = False

    def __repr__(self) -> str:
        return f"ModelDraft({self.model!r})"

    def memory(self) -> ReadTokens:
        """Return that nothing of a row was read."""
        return ReadTokens()

    def keep(self, memories: Sequence[Any]) -> None:
        """Let go of the keys and values of other rows."""
        for group in self._groups:
            group.keep(memories)
        self._groups = [group for group in self._groups if group.members]

    def guess(self, wishes: Sequence[Wish]) -> None:
        """Draw guesses for all rows together, one token of each per forward."""
        lengths = [(wish, self._length(wish)) for wish in wishes]
        asked = [(wish, length) for wish, length in lengths if length]
        if asked:
            self._guess(asked)

    def _length(self, wish: Wish) -> int:
        """Return how many tokens to guess for a row: none where they would not fit into the context."""
        length, longest = wish.length(_KIND, _EXPECTED), self.model.context_length
        return length if longest is None else max(min(length, longest - len(wish.row.token_ids)), 0)

    def _guess(self, asked: Sequence[tuple[Wish, int]]) -> None:
        counts = Meter()
        try:
            groups = [asked] if self.model.can_stack else [[one] for one in asked]
            for group in groups:
                self._guess_together(group, counts)
        finally:
            self.model.count(counts)

    def _guess_together(self, asked: Sequence[tuple[Wish, int]], counts: Meter) -> None:
        """Read what is new of each row, and draw from what the model says, until all have their guess."""
        memories = [wish.draft.memory for wish, _ in asked]
        rows = self._rows_of(memories)
        for wish, _ in asked:
            rows.rewind(wish.draft.memory, wish.row.token_ids)
        going = [(wish, length) for wish, length in asked if wish.walk.mask is not None]
        while going:
            logits = rows.read([(wish.draft.memory, wish.walk.context) for wish, _ in going], counts)
            read = [(wish, line) for (wish, _), line in zip(going, logits, strict=True) if line is not None]
            ended = set()
            for (wish, _), (token_id, sure) in zip(read, self._drawn(read), strict=True):
                grade = bisect(_GRADES, sure)
                share = wish.draft.share(Graded(_KIND, grade), _SHARES[grade])
                has_more = wish.walk.push(token_id, Graded(_KIND, grade)) and wish.pays(share)
                if not has_more:
                    ended.add(id(wish))
            going = [
                (wish, length)
                for wish, length in going
                if id(wish) not in ended and wish.walk.mask is not None and wish.walk.num_drafted < length
            ]

    def _rows_of(self, memories: Sequence[Any]) -> DraftRows:
        """Return the rows that run together, these among them."""
        for group in self._groups:
            if self.model.can_stack or any(memory is memories[0] for memory in group.members):
                group.add(memories)
                return group
        self._groups.append(DraftRows(self.model))
        self._groups[-1].add(memories)
        return self._groups[-1]

    def _drawn(self, read: Sequence[tuple[Wish, torch.Tensor]]) -> list[tuple[int, float]]:
        """Return a token for each row, drawn as the row would draw it, with the same random number; and its probability."""
        if not read:
            return []
        logits = self._masked([wish for wish, _ in read], torch.stack([line for _, line in read]))
        drawings = [wish.drawing for wish, _ in read]
        is_random = any(drawing.needs_random or drawing.needs_counts for drawing in drawings)
        # A user's own sampler or warper is not called for tokens that are only guessed, and `Mirostat` goes by those that were drawn.
        if is_random and all(d.params is not None and d.params.is_standard and not d.has_mirostat for d in drawings):
            found = self._sampled([wish for wish, _ in read], drawings, logits)
        else:
            largest = logits.max(dim=-1)
            found = largest.indices, largest.values - logits.logsumexp(dim=-1)
        return [*zip(found[0].tolist(), found[1].exp().tolist(), strict=True)]

    def _sampled(
        self, wishes: Sequence[Wish], drawings: list[Drawing], logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        uniforms = torch.tensor(
            [wish.uniform() if d.needs_random else 0.0 for wish, d in zip(wishes, drawings, strict=True)],
            dtype=torch.float64,
        )
        counts = [wish.token_counts() if d.needs_counts else None for wish, d in zip(wishes, drawings, strict=True)]
        drawn = self._plans.of(drawings).draw(logits, uniforms, counts)
        return drawn.token_ids, drawn.logprobs

    def _masked(self, wishes: Sequence[Wish], logits: torch.Tensor) -> torch.Tensor:
        """Return (R, V) logits under the masks of the rows, those that are made; V is that of the model that writes."""
        if logits.shape[-1] < self._vocab_size:
            missing = self._vocab_size - logits.shape[-1]
            logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        masks = [_made(wish.walk.mask) for wish in wishes]
        return self._masker.masked(logits[:, : self._vocab_size], masks)


def _made(mask: TokenSet | None) -> TokenSet:
    """Return a mask, all tokens where it is not made yet: whether a token fits is then asked of the policy."""
    return mask if mask is not None and mask.is_made else TokenSet.all


def model_draft(draft: LanguageModel, model: LanguageModel) -> ModelDraft:
    """Return what guesses by `draft` for rows of `model`; made when first asked for.

    Raises:
        VocabularyMismatch: their tokens differ.
        UnsupportedModel: the cache of `draft` cannot be cut.
    """
    known: WeakKeyDictionary[LanguageModel, ModelDraft] = draft.memo.setdefault("drafts", WeakKeyDictionary())
    found = known.get(model)
    if found is None:
        _check(draft, model)
        found = known[model] = ModelDraft(draft, model.vocab_size)
    return found


def _check(draft: LanguageModel, model: LanguageModel) -> None:
    if draft.is_recurrent:
        raise UnsupportedModel(
            f"expected a model whose cache can be cut as `draft`, got {draft!r}: it could not go on behind a wrong guess. "
            "Take a model with attention, or `draft='lookup'`."
        )
    size = min(draft.vocab_size, model.vocab_size)
    ours, theirs = model.tokenizer.token_bytes[:size], draft.tokenizer.token_bytes[:size]
    differing = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    beyond = [
        i
        for tokens in (model.tokenizer.token_bytes, draft.tokenizer.token_bytes)
        for i in range(size, len(tokens))
        if tokens[i]
    ]
    if differing or beyond or len(ours) != len(theirs):
        first = (differing or beyond or [min(len(ours), len(theirs))])[0]
        shown = [_token(first, one.tokenizer.token_bytes) for one in (model, draft)]
        raise VocabularyMismatch(
            f"expected a draft with the {model.vocab_size} tokens of {model!r}, got {draft!r}: {len(differing) + len(beyond)} ids differ, "
            f"the first of them {first}: {shown[0]}, and {shown[1]} in the draft. Take a model of the same family, or `draft='lookup'`."
        )


def _token(token_id: int, token_bytes: Sequence[bytes | None]) -> str:
    if token_id >= len(token_bytes):
        return "no token"
    return "a special token" if token_bytes[token_id] is None else repr(token_bytes[token_id])
