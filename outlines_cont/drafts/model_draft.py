"""`DraftRows`: the KV cache of a draft model with one row per drafted row, fed in common forwards, long prompts in parts. Before a draft
each is rolled back to its longest common prefix with the row as it is now; forks and dropped rows are fed anew. `FedIds`: the ids fed for
one row.

`ModelDraft`: speculative decoding with a smaller model, which drafts for all rows of a batch in common forwards, until one more token no
longer pays. It draws under the masks of the rows, if computed, with their samplers and random numbers, so that drafts are often accepted;
it takes the most probable tokens if a row has a user's own sampler or warpers, or one that follows the surprisal. Models with other
tokens, or whose KV cache cannot be cut (recurrent ones), are refused.

Leviathan, Kalman and Matias 2023, arXiv:2211.17192, without their rejection step: the target model draws each token with the random number
that it would have used anyway.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from outlines_cont.engine.drafting.chunk_width import chunk_width
from outlines_cont.engine.drafting.lengths import LONGEST, Graded
from outlines_cont.engine.drafting.row_draft import Drafter, DraftRequest, pays, set_lengths
from outlines_cont.engine.drawing.draw_plan import DrawPlans
from outlines_cont.engine.drawing.drawing import Drawing
from outlines_cont.engine.drawing.masking import Masker
from outlines_cont.errors import UnsupportedModel, VocabularyMismatch
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import KVBatch
from outlines_cont.meter import Meter
from outlines_cont.policies.branch import TokenSet
from outlines_cont.sampling.kernels import TokenCounts

_MAX_BATCH_TOKENS = 4096


class FedIds:
    """The ids that a draft model was fed for one row; its memory of the row, see `Drafter`.

    Attributes:
        token_ids: the ids, draft tokens included.
        num_same: how many of the first are known to be still those of the row.
    """

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.num_same = 0

    def cut(self, length: int) -> None:
        """Record that the row was rewound to its first `length` tokens."""
        self.num_same = min(self.num_same, length)

    def fork(self) -> FedIds:
        """Return an empty memory: the tokens of a fork are fed again if it is drafted for."""
        return FedIds()

    def num_common(self, token_ids: Sequence[int]) -> int:
        """Return the length of the common prefix with a row, without its last token, which is always fed again."""
        at, stop = min(self.num_same, len(token_ids) - 1), min(len(self.token_ids), len(token_ids) - 1)
        while at < stop and self.token_ids[at] == token_ids[at]:
            at += 1
        return min(at, stop)


class DraftRows:
    """The rows that a draft model is fed in common forwards, with their KV cache."""

    def __init__(self, model: LanguageModel) -> None:
        self.members: list[FedIds] = []  # one for each row
        self._model = model
        self._kv: KVBatch | None = None

    def add(self, memories: Sequence[FedIds]) -> None:
        """Add the rows that are new. Cost: that of a new batch, if there are any."""
        new = [memory for memory in memories if memory not in self.members]
        if new:
            shares = [] if self._kv is None else self._kv.release_all()
            self._kv = None
            self.members += new
            self._kv = KVBatch(self._model, [*shares, *[None] * len(new)])

    def keep(self, memories: Sequence[FedIds]) -> None:
        """Drop all other rows; they are fed again if they are drafted for again."""
        wanted = set(memories)
        staying = [i for i, memory in enumerate(self.members) if memory in wanted]
        if len(staying) == len(self.members):
            return
        for memory in self.members:
            if memory not in wanted:
                memory.token_ids, memory.num_same = [], 0
        self.members = [self.members[i] for i in staying]
        if self._kv is not None and staying:
            self._kv.keep(staying)
        else:
            self._kv = None

    def rewind(self, memory: FedIds, token_ids: Sequence[int]) -> None:
        """Roll back to the longest common prefix of what was fed and the row."""
        at, kv = self._index(memory), self._batch
        common = min(memory.num_common(token_ids), kv.lengths[at])
        if common < kv.lengths[at]:
            kv.rewind({at: common})
        memory.token_ids, memory.num_same = [*token_ids[:common]], common

    def feed(self, wanted: Sequence[tuple[FedIds, Sequence[int]]], counts: Meter) -> list[torch.Tensor | None]:
        """Feed the new tokens of some rows, each given with all its ids, of which at least one was not fed, in one forward.

        Return for each of them (V,) logits after the last id; None if it was too much for one forward, so that the rest is to be fed.
        """
        kv, indices = self._batch, [self._index(memory) for memory, _ in wanted]
        pending = [0] * len(self.members)
        for at, (_, token_ids) in zip(indices, wanted, strict=True):
            pending[at] = len(token_ids) - kv.lengths[at]
        width = chunk_width(pending, _MAX_BATCH_TOKENS, self._model.device.type)
        chunks: list[list[int]] = [[] for _ in self.members]
        for at, (memory, token_ids) in zip(indices, wanted, strict=True):
            start = kv.lengths[at]
            chunks[at] = [*token_ids[start : start + width]]
            memory.token_ids += chunks[at]
        is_whole = [bool(chunk) and len(chunk) == count for chunk, count in zip(chunks, pending, strict=True)]
        fed = kv.feed(
            chunks, [[len(chunk) - 1] if whole else [] for chunk, whole in zip(chunks, is_whole, strict=True)]
        )
        counts.forwards += 1
        counts.fed_tokens += sum(map(len, chunks))
        return [fed.logits[at, fed.columns[at][len(chunks[at]) - 1]] if is_whole[at] else None for at in indices]

    @property
    def _batch(self) -> KVBatch:
        assert self._kv is not None
        return self._kv

    def _index(self, memory: FedIds) -> int:
        return self.members.index(memory)


_KIND, _EXPECTED = "model", 0.7
# Draft tokens are graded by their probability in the draft model; for each grade the initial acceptance rate.
_GRADES, _SHARES = (0.3, 0.6, 0.85, 0.97), (0.3, 0.5, 0.7, 0.85, 0.95)


class ModelDraft(Drafter):
    """A drafter with a model, whose forwards count in its own meters; ids from `vocab_size` of the target model on are never drafted."""

    def __init__(self, model: LanguageModel, vocab_size: int) -> None:
        self.model = model
        self._vocab_size = vocab_size
        self._groups: list[DraftRows] = []
        self._masker = Masker()
        self._plans = DrawPlans()

    def __repr__(self) -> str:
        return f"ModelDraft({self.model!r})"

    def memory(self) -> FedIds:
        """Return an empty memory."""
        return FedIds()

    def keep(self, memories: Sequence[Any]) -> None:
        """Drop the keys and values of other rows."""
        for group in self._groups:
            group.keep(memories)
        self._groups = [group for group in self._groups if group.members]

    def draft(self, requests: Sequence[DraftRequest]) -> None:
        """Draft for all rows together, one token of each per forward."""
        wanted = set_lengths(requests, [self._share(request) for request in requests])
        if not wanted:
            return
        groups = [wanted] if self.model.can_stack else [[one] for one in wanted]
        counts = Meter()
        try:
            for group in groups:
                self._draft_together(group, counts)
        finally:
            self.model.count(counts)

    def _share(self, request: DraftRequest) -> float:
        """Return the acceptance rate for a row; 0 if the context of the draft model has no room."""
        return request.draft.share(_KIND, _EXPECTED) if self._room(request) > 0 else 0.0

    def _room(self, request: DraftRequest) -> int:
        longest = self.model.context_length
        return LONGEST if longest is None else longest - len(request.row.token_ids)

    def _draft_together(self, wanted: Sequence[DraftRequest], counts: Meter) -> None:
        """Feed the new tokens of each row, and draw draft tokens until all drafts are complete, or no further token pays."""
        rows = self._rows_of([request.draft.memory for request in wanted])
        for request in wanted:
            rows.rewind(request.draft.memory, request.row.token_ids)
        lengths = {request: min(request.length, self._room(request)) for request in wanted}
        open_ones = [request for request in wanted if request.lookahead.mask is not None]
        while open_ones:
            logits = rows.feed([(request.draft.memory, request.lookahead.context) for request in open_ones], counts)
            known = [(request, after) for request, after in zip(open_ones, logits, strict=True) if after is not None]
            shares = dict.fromkeys(open_ones, 0.0)
            for (request, _), (token_id, chance) in zip(known, self._drawn(known), strict=True):
                kind = Graded(_KIND, bisect(_GRADES, chance))
                shares[request] = request.draft.share(kind, _SHARES[kind.grade])
                if not request.lookahead.push(token_id, kind) or request.lookahead.num_drafted >= lengths[request]:
                    del shares[request]
            open_ones = [request for request in shares if request.lookahead.mask is not None]
            if open_ones and known and not pays(open_ones, [shares[request] for request in open_ones]):
                break

    def _rows_of(self, memories: Sequence[Any]) -> DraftRows:
        """Return the group of rows that includes these, which are added to it."""
        for group in self._groups:
            if self.model.can_stack or memories[0] in group.members:
                break
        else:
            group = DraftRows(self.model)
            self._groups.append(group)
        group.add(memories)
        return group

    def _drawn(self, known: Sequence[tuple[DraftRequest, torch.Tensor]]) -> list[tuple[int, float]]:
        """Return a token for each row, drawn with the sampler and the random number of the row; and its probability."""
        if not known:
            return []
        requests = [request for request, _ in known]
        logits = self._masked(requests, torch.stack([after for _, after in known]))
        drawings = [request.row.piece.spec.drawing(request.lookahead.temperature) for request in requests]
        needs_draw = any(drawing.needs_random or drawing.needs_counts for drawing in drawings)
        # A user's own sampler or warper is not called for draft tokens, and the surprisal that one follows is that of drawn tokens.
        if needs_draw and all(
            d.params is not None and d.params.is_standard and not d.follows_surprise for d in drawings
        ):
            token_ids, logprobs = self._sampled(requests, drawings, logits)
        else:
            logprobs, token_ids = logits.max(dim=-1)
            logprobs = logprobs - logits.logsumexp(dim=-1)
        return [*zip(token_ids.tolist(), logprobs.exp().tolist(), strict=True)]

    def _sampled(
        self, requests: Sequence[DraftRequest], drawings: list[Drawing], logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = [*zip(requests, drawings, strict=True)]
        # The random number with which the row will draw, which is not taken from its stream.
        uniforms = [r.row.stream.peek(r.lookahead.num_drawn) if d.needs_random else 0.0 for r, d in pairs]
        counts = [_token_counts(request) if d.needs_counts else None for request, d in pairs]
        drawn = self._plans.of(drawings).draw(logits, torch.tensor(uniforms, dtype=torch.float64, device="cpu"), counts)
        return drawn.token_ids, drawn.logprobs

    def _masked(self, requests: Sequence[DraftRequest], logits: torch.Tensor) -> torch.Tensor:
        """Return (R, V) logits under the masks of the rows; V is that of the target model.

        A lazy mask that is not computed yet is not applied; the policy refuses the token if it does not fit.
        """
        if logits.shape[-1] < self._vocab_size:
            missing = self._vocab_size - logits.shape[-1]
            logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
        masks = [request.lookahead.mask for request in requests]
        known = [mask if mask is not None and mask.is_made else TokenSet.all for mask in masks]
        return self._masker.masked(logits[:, : self._vocab_size], known)


def _token_counts(request: DraftRequest) -> TokenCounts:
    """Return the token counts of a row with its draft tokens."""
    counts = request.row.counts_for(follows_surprise=False).fork()
    for token_id in request.lookahead.token_ids:
        counts.add(token_id, True)
    return counts


def model_draft(draft: LanguageModel, model: LanguageModel) -> ModelDraft:
    """Return the drafter with the model `draft` for rows of `model`, created by the first call.

    Raises:
        VocabularyMismatch: their tokens differ.
        UnsupportedModel: the KV cache of `draft` cannot be cut.
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
            f"expected a model whose cache can be cut as `draft`, got {draft!r}: rejected tokens could not be removed. "
            "Take a model with attention, or `draft='lookup'`."
        )
    size = min(draft.vocab_size, model.vocab_size)
    ours, theirs = model.tokenizer.token_bytes[:size], draft.tokenizer.token_bytes[:size]
    differing = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b]
    both = (model.tokenizer.token_bytes, draft.tokenizer.token_bytes)
    beyond = [i for tokens in both for i in range(size, len(tokens)) if tokens[i]]
    if differing or beyond or len(ours) != len(theirs):
        first = (differing or beyond or [min(len(ours), len(theirs))])[0]
        shown = [_token(first, tokens) for tokens in both]
        raise VocabularyMismatch(
            f"expected a draft with the {model.vocab_size} tokens of {model!r}, got {draft!r}: {len(differing) + len(beyond)} ids differ, "
            f"the first of them {first}: {shown[0]}, and {shown[1]} in the draft. Take a model of the same family, or `draft='lookup'`."
        )


def _token(token_id: int, token_bytes: Sequence[bytes | None]) -> str:
    if token_id >= len(token_bytes):
        return "no token"
    return "a special token" if token_bytes[token_id] is None else repr(token_bytes[token_id])
