"""A row that follows a conversation keeps its own spelling as far as the texts are the same."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from outlines_cont.chats.chat_format import aligned
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import StateRow, written
from tests.examples import examples
from tests.fakes import BOS, END_OF_TURN, FakeTokenizer

_TOKENIZER = FakeTokenizer()
_PIECES = ["the ", "red", "é", "日", "🙂", "a", "b", "abc", " an", BOS, END_OF_TURN]


def _spelled(pieces: list[str | int], cuts: list[int]) -> list[int]:
    """Ids of texts and special tokens; a text that is cut is spelled in two parts."""
    token_ids: list[int] = []
    for number, piece in enumerate(pieces):
        if isinstance(piece, int):
            token_ids.append(piece)
            continue
        cut = cuts[number % len(cuts)] % (len(piece) + 1) if cuts else 0
        token_ids += [*_TOKENIZER.encode(piece[:cut]), *_TOKENIZER.encode(piece[cut:])]
    return token_ids


def _bytes(token_ids: list[int]) -> bytes:
    return b"".join(written(token_ids, _TOKENIZER))


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """A row, and what is wanted: with a common beginning in two spellings, as a rule."""
    pieces = draw(st.lists(st.sampled_from(_PIECES), max_size=6))
    others = draw(st.lists(st.sampled_from(_PIECES), max_size=4))
    ends = draw(st.lists(st.sampled_from(_PIECES), max_size=3))
    cuts = draw(st.lists(st.integers(0, 3), max_size=3))
    return _spelled(pieces + others, cuts), _spelled(pieces + ends, [])


@example([b"\xef"])
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=4), st.just(BOS), st.sampled_from(["日".encode(), b"a b"])), max_size=5))
def test_bytes_that_are_no_text_stay_where_messages_hold_their_replacement(pieces: list[bytes | int]) -> None:
    ids = {part: i for i, part in enumerate(_TOKENIZER.token_bytes) if part}
    own = [i for piece in pieces for i in ([piece] if isinstance(piece, int) else [ids[bytes([b])] for b in piece])]
    wanted: list[int] = []
    data = b""
    for piece in [*pieces, BOS]:
        if isinstance(piece, int):
            wanted += [*_TOKENIZER.encode(data.decode(errors="replace")), piece]
            data = b""
        else:
            data += piece
    found = list(aligned(StateRow.of_prompt(own, RandomStream(0)), wanted, _TOKENIZER).token_ids)
    assert found == [*own, BOS]


@settings(max_examples=examples(150), deadline=None)
@given(_cases())
def test_the_row_spells_what_is_wanted_and_keeps_its_own_tokens(case: tuple[list[int], list[int]]) -> None:
    own, wanted = case
    row = aligned(StateRow.of_prompt(own, RandomStream(0)), wanted, _TOKENIZER)
    found = list(row.token_ids)
    assert _bytes(wanted) == _bytes(found)
    special = _TOKENIZER.special_tokens
    assert [i for i in wanted if i in special] == [i for i in found if i in special]
    kept = next((i for i, (a, b) in enumerate(zip(own, found, strict=False)) if a != b), min(len(own), len(found)))
    assert kept >= _most_kept(own, wanted)
    if kept < len(own):  # then the rest is as it is wanted
        tail = len(found) - kept
        assert found[kept:] == wanted[len(wanted) - tail :]


def _most_kept(own: list[int], wanted: list[int]) -> int:
    """Try every number of tokens up to which both have spelled the same, the special ones at the same places."""

    def steps(token_ids: list[int]) -> list[tuple[bytes, tuple[int, ...]]]:
        out, data, special = [(b"", ())], b"", tuple[int, ...]()
        for token_id in token_ids:
            part = _TOKENIZER.token_bytes[token_id]
            data, special = (data + part, special) if part is not None else (data, (*special, len(data), token_id))
            out.append((data, special))
        return out

    reached = set(steps(wanted))
    return max(count for count, step in enumerate(steps(own)) if step in reached)
