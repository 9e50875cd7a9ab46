"""Inputs that hang, exhaust or crash others: each compiles or is refused with a typed error, and masks can be walked."""

from __future__ import annotations

import pytest

from fsm import FSMError, TokenFSM, Vocabulary
from tests.hostile import HOSTILE

Tokens = tuple[list[bytes | None], list[int]]


@pytest.mark.filterwarnings("ignore:the mask of one state takes more than:RuntimeWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_it_compiles_and_can_be_walked_or_is_refused(name: str, sentencepiece_32k: Tokens) -> None:
    tokens, eos = sentencepiece_32k
    try:
        token_fsm = TokenFSM(HOSTILE[name](), _vocabulary(tokens, eos), max_mask_work=20_000)
        state = token_fsm.initial_state
        for step in range(12):
            allowed = [t for t in token_fsm.allowed_token_ids(state).tolist() if t not in eos]
            if not allowed:
                break
            state = token_fsm.next_state(state, allowed[(step * 37) % len(allowed)])
    except FSMError as refusal:
        said = str(refusal)
    else:
        return
    assert len(said) > 20


_VOCABULARIES: dict[int, Vocabulary] = {}


def _vocabulary(tokens: list[bytes | None], eos: list[int]) -> Vocabulary:
    """One for all cases."""
    return _VOCABULARIES.setdefault(id(tokens), Vocabulary(tokens, eos))
