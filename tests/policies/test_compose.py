"""Several policies on one row, against a plain reading of the rule by which their branches become one."""

from __future__ import annotations

from functools import cache

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from outlines_cont import Branch, RowView, TokenSet
from outlines_cont.errors import UnsupportedBranch
from outlines_cont.models import HuggingFaceModel
from tests.engine.test_engine_loop import Planned, _ids, _write
from tests.examples import examples
from tests.fakes import scripted_model

# What a policy wants at one place: a mask (None forces the one sequence) and sequences that go on from a token; None stops.
Wish = tuple[frozenset[int] | None, tuple[tuple[int, ...], ...]] | None

# The likely tokens, the likeliest first, and those that every mask allows.
_LIKELY, _COMMON = range(20, 26), frozenset(range(26, 30))
_MASKS = st.frozensets(st.sampled_from(_LIKELY)).map(lambda ids: ids | _COMMON)
_TAILS = st.lists(st.sampled_from(sorted(_COMMON)), max_size=2)
_SEQUENCES = st.dictionaries(st.sampled_from(_LIKELY), _TAILS, min_size=1, max_size=2).map(
    lambda found: tuple((first, *rest) for first, rest in found.items())
)
_FORCED = st.lists(st.sampled_from([*_LIKELY, *_COMMON]), min_size=1, max_size=3).map(tuple)
_WISHES = st.one_of(
    st.tuples(_MASKS, st.just(())),
    st.tuples(_MASKS, st.just(())),
    st.tuples(_MASKS, _SEQUENCES),
    _FORCED.map(lambda ids: (None, (ids,))),
    st.none(),
)


@cache
def _model() -> HuggingFaceModel:
    return scripted_model(lambda ids: {token_id: float(60 - token_id) for token_id in (*_LIKELY, *_COMMON)})


def _branches(wish: Wish) -> list[Branch]:
    if wish is None:
        return []
    mask, sequences = wish
    return [Branch(sample_mask=None if mask is None else TokenSet.of(mask), ff_tokens=[list(ids) for ids in sequences])]


def _expected(policies: list[list[Wish]], limit: int) -> tuple[list[int], bytes, bool]:
    """The tokens that are written, their kinds, and whether the policies contradict each other.

    They are asked behind the last token, too: they may end the piece there, or contradict each other.
    """
    written, kinds = list[int](), b""
    while True:
        written, kinds = written[:limit], kinds[:limit]
        wishes = [wishes[len(written)] for wishes in policies]
        if None in wishes:
            return written, kinds, False
        known = [wish for wish in wishes if wish is not None]
        leader = next((at for at, (mask, _) in enumerate(known) if mask is None), None)
        if leader is not None:
            others = [wishes for at, wishes in enumerate(policies) if at != leader]
            agreed = 0
            for token_id in known[leader][1][0]:
                ahead = [wishes[len(written) + agreed] for wishes in others]
                if None in ahead:
                    break
                if any(wish is not None and wish[0] is not None and token_id not in wish[0] for wish in ahead):
                    if not agreed:
                        return written, kinds, True
                    break
                agreed += 1
            if len(written) == limit:
                return written, kinds, False
            new = list(known[leader][1][0][:agreed])
            written, kinds = written + new, kinds + b"f" * len(new)
            continue
        if sum(bool(sequences) for _, sequences in known) > 1:
            return written, kinds, True
        if len(written) == limit:
            return written, kinds, False
        allowed = frozenset.intersection(*(mask for mask, _ in known if mask is not None))
        likeliest = min(allowed)
        sequence = next((ids for _, found in known for ids in found if ids[0] == likeliest), (likeliest,))
        written, kinds = written + list(sequence), kinds + b"g" + b"f" * (len(sequence) - 1)


_ALL = _COMMON | {*_LIKELY}
_FREE: list[Wish] = [(_ALL, ())] * 6


# Not shrunk: every try runs the engine.
@settings(max_examples=examples(30), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(st.lists(_WISHES, min_size=12, max_size=12), min_size=1, max_size=3))
# They contradict each other behind the last token.
@example([[*_FREE, (_COMMON, ())], [*_FREE, (None, ((20,),))]])
@example([[*_FREE, (_ALL, ((20,),))], [*_FREE, (_ALL, ((21,),))]])
@example([[*_FREE, (_COMMON, ())], [*_FREE[:5], (None, ((26, 27),)), (None, ((20,),))]])
@example([[*_FREE[:5], (_ALL, ((20, 26),)), (_COMMON, ())], [*_FREE, (None, ((20,),))]])
# They do not: one ends the piece there, or what is forced is allowed.
@example([[*_FREE, (_COMMON, ())], [*_FREE, (None, ((20,),))], [*_FREE, None]])
@example([[*_FREE, (_COMMON, ())], [*_FREE, (None, ((26,),))]])
def test_what_several_policies_want_becomes_what_the_rule_says(policies: list[list[Wish]]) -> None:
    def planned(wishes: list[Wish]) -> Planned:
        def plan(state: int, row: RowView) -> list[Branch]:
            return _branches(wishes[state])

        return Planned(plan)

    wanted, kinds, contradict = _expected(policies, 6)
    (row,) = _write(_model(), [_ids(">")], [[planned(wishes) for wishes in policies]], max_tokens=6)
    prompt = len(_ids(">"))
    assert wanted == list(row.token_ids[prompt:])
    assert kinds == row.kinds[prompt:]
    assert contradict == isinstance(row.error, UnsupportedBranch)
