"""`Proposer`: the protocol of a user's own draft, `propose(token_ids)`; `Proposed`: the drafter that calls it for one row after the other
and checks the ids. If it raises, that row gets no more drafts, and a warning is issued once.

`open_draft`: returns the drafter of an option `draft=`: prompt lookup (`"lookup"`), a draft model (both cached per model), or a user's
`Proposer`. Recurrent models, whose KV cache cannot be cut, are refused, and draft models with other tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, SupportsIndex, runtime_checkable

from outlines_cont.checks import check_draft, is_model
from outlines_cont.drafts.lookup import Lookup
from outlines_cont.drafts.model_draft import model_draft
from outlines_cont.engine.drafting.row_draft import Drafter, DraftRequest, set_lengths
from outlines_cont.errors import UnsupportedModel, shortened
from outlines_cont.interfaces import LanguageModel
from outlines_cont.user_code import shielded

_KIND, _EXPECTED = "proposed", 0.5


@runtime_checkable
class Proposer(Protocol):
    """A user's own draft: proposes the tokens that may follow a row.

    It may propose anything: a draft changes the speed, and never the output. It is called in the steps of the engine, one call at a
    time, by any thread.
    """

    def propose(self, token_ids: Sequence[int]) -> Iterable[int]:
        """Return the ids that may follow.

        Args:
            token_ids: all ids of a row so far, prompt included, then any forced tokens; a copy.

        Returns:
            Any number of ids, or none. Of an iterator only as many are taken as the draft is long.
        """


class Proposed(Drafter):
    """The drafter of a user's `Proposer`."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer

    def __repr__(self) -> str:
        return shortened(repr(self.proposer))

    def memory(self) -> _NoMemory:
        """Return an empty memory."""
        return _NoMemory()

    def draft(self, requests: Sequence[DraftRequest]) -> None:
        """Call the proposer for each row, and push its tokens as far as the policies allow them."""
        for request in set_lengths(requests, [request.draft.share(_KIND, _EXPECTED) for request in requests]):
            try:
                shielded(self._ask, request)
            except Exception as error:
                request.draft.fail(error)

    def _ask(self, request: DraftRequest) -> None:
        proposed = self.proposer.propose([*request.lookahead.context])
        if isinstance(proposed, str | bytes) or not isinstance(proposed, Iterable):
            raise TypeError(f"expected token ids from `propose` of {self.proposer!r}, got {shortened(repr(proposed))}")
        rest, lookahead = map(self._checked, proposed), request.lookahead
        while (
            lookahead.mask is not None and lookahead.num_drafted < request.length and lookahead.push_next(rest, _KIND)
        ):
            pass

    def _checked(self, token_id: object) -> int:
        if isinstance(token_id, bool) or not isinstance(token_id, SupportsIndex):
            raise TypeError(
                f"expected token ids from `propose` of {self.proposer!r}, got {shortened(repr(token_id))} among them"
            )
        return token_id.__index__()


class _NoMemory:
    def cut(self, length: int) -> None:
        pass

    def fork(self) -> _NoMemory:
        return self


Draft = Any


def open_draft(draft: Draft, model: LanguageModel) -> Drafter | None:
    """Return the drafter for rows of a model; None without speculative decoding.

    Raises:
        OptionError: see `check_draft`.
        VocabularyMismatch: the draft model has other tokens.
        UnsupportedModel: the KV cache of one of the models cannot be cut, so that a draft could not be rolled back.
    """
    check_draft(draft)
    if draft is None:
        return None
    if model.is_recurrent:
        raise UnsupportedModel(
            f"expected a model whose cache can be cut, to use `draft`, got {model!r}: rejected tokens could not be removed. "
            "Leave `draft` out."
        )
    if isinstance(draft, str):
        lookup: Lookup = model.memo.setdefault("lookup", Lookup())
        return lookup
    return model_draft(draft, model) if is_model(draft) else Proposed(draft)
