"""What may not be drawn again: `Exclusions` beside a plain dict, and how a row goes back beside a plain search over a tiny language."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import example, given, settings

from outlines_cont import Branch, Policy, RowView, TokenSet
from outlines_cont.engine import backtracking
from outlines_cont.engine import steering as steering_module
from outlines_cont.engine.drawing.drawing import Draw
from outlines_cont.engine.piece import RowStatus
from outlines_cont.engine.row import Row
from outlines_cont.engine.steering import plan, take
from outlines_cont.errors import RetriesSpent, UnsupportedBranch
from outlines_cont.models import Meter
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.row import Exclusion, Exclusions, StateRow
from tests.examples import examples
from tests.fakes import EOS, VOCAB_SIZE, random_model
from tests.rows import row_of

PROMPT = [72, 73]
LETTERS = (100, 101, 102, 270)
IDS = st.frozensets(st.integers(0, 9), max_size=3)
ADDED = st.tuples(st.just("add"), st.integers(0, 5), IDS, IDS, st.integers(0, 2))
STEPS = st.lists(st.one_of(ADDED, st.tuples(st.just("until"), st.integers(0, 6))), max_size=12)


@given(STEPS)
def test_exclusions_are_a_dict_of_places_that_forgets_those_behind(steps: list[tuple[Any, ...]]) -> None:
    found, plain = Exclusions(), dict[int, tuple[frozenset[int], frozenset[int], int, int]]()
    for step in steps:
        before, known = found, dict(plain)
        plain = {index: place for index, place in plain.items() if index < step[1]}
        if step[0] == "add":
            _, index, excluded, avoided, policy = step
            old = known.get(index, (frozenset(), frozenset(), 0, 0))
            plain[index] = old[0] | excluded, old[1] | avoided, policy, old[3] + 1
            found = before.adding(index, excluded, avoided, policy)
        else:
            found = before.until(step[1])
        assert before.entries == tuple(Exclusion(index, *known[index]) for index in sorted(known))
        assert [*found] == [Exclusion(index, *plain[index]) for index in sorted(plain)]
        for index in range(-1, 8):
            assert found.at(index) == (Exclusion(index, *plain[index]) if index in plain else None)


# -- a row beside a plain search ----------------------------------------------------------------------------------------

Ids = tuple[int, ...]
Refusal = tuple[int, frozenset[int] | None, frozenset[int] | None]  # how far back, what is excluded there, what is avoided


def number(*key: object) -> int:
    """A number that depends on all of `key` and on nothing else."""
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=4).digest(), "little")


@dataclass(frozen=True)
class Language:
    """A finite language over a few letters: which of them may follow a text, the end among them."""

    seed: int
    depth: int = 4

    def after(self, ids: Ids) -> frozenset[int]:
        if len(ids) >= self.depth:
            return frozenset({EOS})
        found = frozenset(letter for letter in LETTERS if number(self.seed, ids, letter) % 5 < 3)
        return found | {EOS} if not found or number(self.seed, ids, "end") % 2 else found

    def forced(self, ids: Ids) -> list[int]:
        """The letters that follow a text without a choice."""
        found: list[int] = []
        while len(after := self.after((*ids, *found))) == 1 and EOS not in after:
            found += after
        return found

    def texts(self, refused: Callable[[Ids], bool], not_whole: Callable[[Ids], bool]) -> list[Ids]:
        """Every text no beginning of which is refused, and which is not refused as a whole."""
        found: list[Ids] = []
        todo: list[Ids] = [()]
        while todo:
            ids = todo.pop()
            if not refused(ids):
                allowed = self.after(ids)
                found += [ids] if EOS in allowed and not not_whole(ids) else []
                todo += [(*ids, letter) for letter in allowed - {EOS}]
        return found


@dataclass(frozen=True)
class Allows(Policy[Ids]):
    """Keeps a row inside a language; with `forces` it writes by itself what has no choice."""

    language: Language
    forces: bool = False

    def initial(self, row: RowView) -> Ids:
        return ()

    def advance(self, state: Ids, token_id: int) -> Ids:
        return (*state, token_id)

    def branches(self, state: Ids, row: RowView) -> list[Branch]:
        if self.forces and (forced := self.language.forced(state)):
            return [Branch(ff_tokens=[forced])]
        return [Branch(sample_mask=TokenSet.of(self.language.after(state)))]


@dataclass(frozen=True)
class Refuses(Policy[tuple[Ids, bool]]):
    """Refuses some texts, as they are written or as they end."""

    rule: Callable[[Ids], Refusal | None]
    end_rule: Callable[[Ids], Refusal | None]
    most: int | None = None
    most_per_place: int | None = None
    lets_pass: bool = False

    @property
    def max_retries(self) -> int | None:
        return self.most

    @property
    def max_retries_per_place(self) -> int | None:
        return self.most_per_place

    def initial(self, row: RowView) -> tuple[Ids, bool]:
        return (), False

    def advance(self, state: tuple[Ids, bool], token_id: int) -> tuple[Ids, bool]:
        return (*state[0], token_id), state[1]

    def branches(self, state: tuple[Ids, bool], row: RowView) -> list[Branch]:
        refusal = None if state[1] else self.rule(state[0])
        return [Branch(sample_mask=TokenSet.all) if refusal is None else branch_of(refusal)]

    def at_end(self, state: tuple[Ids, bool], row: RowView) -> Branch | None:
        refusal = None if state[1] else self.end_rule(state[0])
        return None if refusal is None else branch_of(refusal)

    def give_up(self, state: tuple[Ids, bool], row: RowView, reason: str) -> tuple[Ids, bool]:
        return (state[0], True) if self.lets_pass else super().give_up(state, row, reason)


def branch_of(refusal: Refusal) -> Branch:
    back, *sets = refusal
    excluded, avoided = (None if ids is None else TokenSet.of(ids) for ids in sets)
    return Branch(backtrack=back, exclude=excluded, avoid=avoided)


def choice(seed: int, ids: Ids, left: frozenset[int]) -> int:
    """The most probable of some tokens."""
    return min(left, key=lambda token_id: (number(seed, "choice", ids, token_id), token_id))


def new_row(policies: list[Policy[Any]], source: StateRow | None = None, **options: Any) -> Row:
    model = random_model()
    start = StateRow.of_prompt(PROMPT, RandomStream(3)) if source is None else source
    return row_of(start, policies, model, counts=Meter(), resume=source is not None, **options)


def planned(row: Row) -> Row:
    """Have a row say what it wants, with its tokens fed."""
    plan(row)
    while row.awaits_forward:
        count = row.num_pending
        wanted = row.wanted(count)
        row.score([0.0 for _ in row.tokens.scored_by(row.cached, wanted)])
        row.fed(count, {index: torch.zeros(VOCAB_SIZE) for index in wanted})
        plan(row)
    return row


def steered(row: Row, seed: int, *, twice: bool = False) -> Row:
    """Do what the loop does, without a model; `twice` takes every step back once, as where a step has failed."""
    while not planned(row).has_ended:
        assert row.status is RowStatus.SAMPLING
        left = frozenset(token_id for token_id in (*LETTERS, EOS) if token_id in row.sample.mask)
        assert len(left) == row.sample.mask.count(VOCAB_SIZE)
        draw = Draw(choice(seed, tuple(row.piece_ids), left), -1.0, -1.0)
        if twice:
            undo = row.checkpoint()
            take(row, *draw)
            planned(row)
            undo()
            planned(row)
        take(row, *draw)
    return row


def rule_of(seed: int, *, ends: bool, proves: bool) -> Callable[[Ids], Refusal | None]:
    """Refuse some texts. With `proves` only what is refused is excluded, so that nothing that is possible is lost."""

    def rule(ids: Ids) -> Refusal | None:
        if number(seed, ends, ids) % 3 or (not ids and not ends):
            return None
        if proves:
            return (0, frozenset({EOS}), None) if ends else (1, frozenset({ids[-1]}), None)
        back = min(len(ids), number(seed, "back", ids) % 3 + (not ends))
        here = frozenset({ids[-back] if back else EOS})
        more = here | {LETTERS[number(seed, "more", ids) % len(LETTERS)]}
        return [(back, here, None), (back, None, here), (back, here, more), (back, more, None)][number(seed, "k", ids) % 4]

    return rule


@dataclass
class Place:
    """What may not be drawn at one place, and who asked for it last."""

    excluded: set[int] = field(default_factory=set)
    avoided: set[int] = field(default_factory=set)
    retries: int = 0
    policy: int = 0


@dataclass
class Search:
    """The same with lists and a dict, in the words of the documentation."""

    allows: Allows
    policies: list[Refuses]
    seed: int
    ids: list[int] = field(default_factory=list)
    drawn: list[bool] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    retries: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    passes: dict[int, int] = field(default_factory=dict)  # who lets pass, and from which length on
    has_failed: bool = False

    def run(self) -> Ids | None:
        """The text that is written; None where retries are spent, or nothing is left."""
        while not self.has_failed:
            ids, place = tuple(self.ids), self.places.get(len(self.ids), Place())
            refusals = self._asked(lambda policy, ids=ids: policy.rule(ids))
            forced = self.allows.language.forced(ids) if self.allows.forces else []
            if refusals:
                self._refuse(*max(refusals, key=lambda pair: pair[1][0]))
            elif forced and forced[0] in place.excluded:
                self._leave(place)
            elif forced:
                self._append(forced[0], drawn=False)
            else:
                left = self.allows.language.after(ids) - place.excluded
                left = left - place.avoided or left
                token_id = choice(self.seed, ids, left) if left else None
                if token_id is None:
                    self._leave(place)
                elif token_id != EOS:
                    self._append(token_id, drawn=True)
                elif refusals := self._asked(lambda policy, ids=ids: policy.end_rule(ids)):
                    self._refuse(*refusals[0])
                else:
                    return ids
        return None

    def _asked(self, ask: Callable[[Refuses], Refusal | None]) -> list[tuple[int, Refusal]]:
        found = [(number, ask(policy)) for number, policy in enumerate(self.policies) if number not in self.passes]
        return [(number, refusal) for number, refusal in found if refusal is not None]

    def _append(self, token_id: int, *, drawn: bool) -> None:
        self.ids.append(token_id)
        self.drawn.append(drawn)

    def _can_retry(self, policy: int) -> bool:
        most = self.policies[policy].most
        if most is not None and self.retries[policy] >= most:
            self._give_up(policy)
            return False
        self.retries[policy] += 1
        return True

    def _give_up(self, policy: int) -> None:
        if self.policies[policy].lets_pass:
            self.passes.setdefault(policy, len(self.ids))
        else:
            self.has_failed = True
        self.places = {at: place for at, place in self.places.items() if at < len(self.ids)}

    def _refuse(self, policy: int, refusal: Refusal) -> None:
        if self._can_retry(policy):
            back, excluded, avoided = refusal
            self._forbid(len(self.ids) - back, excluded or frozenset(), avoided or frozenset(), policy)

    def _forbid(self, index: int, excluded: frozenset[int], avoided: frozenset[int], policy: int) -> None:
        del self.ids[index:], self.drawn[index:]
        # A state follows the text: whoever let pass what stood further on refuses again.
        self.passes = {number: at for number, at in self.passes.items() if at <= index}
        self.places = {at: place for at, place in self.places.items() if at <= index}
        old = self.places.get(index, Place())
        place = Place(old.excluded | excluded, old.avoided | avoided, old.retries + 1, policy)
        self.places[index] = place
        most = self.policies[policy].most_per_place
        if most is not None and place.retries > most:
            self._leave(place)

    def _leave(self, place: Place) -> None:
        drawn = [at for at, is_drawn in enumerate(self.drawn) if is_drawn]
        if not drawn:
            self._give_up(place.policy)
        elif self._can_retry(place.policy):
            self._forbid(drawn[-1], frozenset({self.ids[drawn[-1]]}), frozenset(), place.policy)


SEEDS = st.integers(0, 10_000)


def outcome(row: Row) -> Ids | None:
    """What a row has written; None where it has failed as it should."""
    if row.error is None:
        return tuple(row.piece_ids)
    if not isinstance(row.error, RetriesSpent):
        raise row.error
    return None


@settings(max_examples=examples(80))
@given(SEEDS, SEEDS, st.booleans())
def test_what_is_possible_is_found_and_what_is_not_fails(language_seed: int, seed: int, forces: bool) -> None:
    language = Language(language_seed)
    rule, end_rule = (rule_of(seed, ends=ends, proves=True) for ends in (False, True))
    possible = language.texts(lambda ids: rule(ids) is not None, lambda ids: end_rule(ids) is not None)
    found = outcome(steered(new_row([Allows(language, forces), Refuses(rule, end_rule)]), seed))
    assert found in possible if possible else found is None


POLICIES = st.lists(
    st.tuples(SEEDS, st.booleans(), st.one_of(st.none(), st.integers(0, 12)), st.one_of(st.none(), st.integers(1, 4)), st.booleans()),
    min_size=1,
    max_size=2,
)


@settings(max_examples=examples(60))
@given(SEEDS, SEEDS, POLICIES, st.booleans(), st.integers(0, 2), st.sampled_from(["once", "twice", "fork"]))
# One policy lets pass what it may not refuse, and the other has the row go back behind that.
@example(345, 0, [(0, False, None, None, False), (145, False, 0, None, True)], False, 0, "once")
@example(345, 2242, [(145, False, 0, None, True), (3987, False, None, None, True)], False, 0, "once")
def test_a_row_goes_back_as_a_plain_search(
    language_seed: int, seed: int, given_policies: list[Any], forces: bool, at: int, how: str
) -> None:
    refusing = []
    for own_seed, proves, most, per_place, lets_pass in given_policies:
        rules = [rule_of(own_seed, ends=ends, proves=proves) for ends in (False, True)]
        # What avoids, and excludes other than what it refuses, may go on for ever.
        refusing.append(Refuses(*rules, 40 if most is None and not proves else most, per_place, lets_pass))
    allows = Allows(Language(language_seed), forces)
    search = Search(allows, refusing, seed)
    wanted = search.run()
    at = min(at, len(refusing))
    policies: list[Policy[Any]] = [*refusing[:at], allows, *refusing[at:]]
    row = new_row(policies)
    if how == "fork":
        other, row = row, row.fork()
        assert wanted == outcome(steered(other, seed))
    steered(row, seed, twice=how == "twice")
    assert wanted == outcome(row)
    assert sum(search.retries.values()) == row.retries
    if wanted is not None:
        plain = {(index + len(PROMPT), place.retries, place.policy + (place.policy >= at)): place for index, place in search.places.items()}
        found = {(place.index, place.retries, place.policy): place for place in row.policies.exclusions}
        assert plain.keys() == found.keys()
        for key, place in plain.items():
            assert (place.excluded, place.avoided) == (found[key].excluded, found[key].avoided)


@settings(max_examples=examples(60))
@given(SEEDS, SEEDS, st.booleans(), st.integers(0, 5), st.booleans())
def test_a_piece_that_is_cut_remembers_what_is_excluded(
    language_seed: int, seed: int, forces: bool, length: int, is_snapshot: bool
) -> None:
    rules = (rule_of(seed, ends=ends, proves=True) for ends in (False, True))
    policies: list[Policy[Any]] = [Allows(Language(language_seed), forces), Refuses(*rules)]
    whole = steered(new_row(policies), seed)
    cut = steered(new_row(policies, max_tokens=length), seed)
    if cut.piece.finish_reason == "length":
        assert len(cut.piece_ids) == length
        resumed = new_row(policies, cut.snapshot(None) if is_snapshot else cut.leave(None))
        assert [cut.uniform(1), cut.uniform(1, 2)] == [resumed.uniform(1), resumed.uniform(1, 2)]
        cut = steered(resumed, seed)
    assert outcome(whole) == outcome(cut)
    assert whole.retries == cut.retries
    assert [*whole.policies.exclusions] == [*cut.policies.exclusions]


# -- policies that do not come to an end --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Insists(Policy[Ids]):
    """Wants the same branch after every text of some length, or at every end."""

    branch: Branch
    length: int | None
    most: int | None = None

    @property
    def max_retries(self) -> int | None:
        return self.most

    def initial(self, row: RowView) -> Ids:
        return ()

    def advance(self, state: Ids, token_id: int) -> Ids:
        return (*state, token_id)

    def branches(self, state: Ids, row: RowView) -> list[Branch]:
        return [self.branch if len(state) == self.length else Branch(sample_mask=TokenSet.all)]

    def at_end(self, state: Ids, row: RowView) -> Branch | None:
        return self.branch if self.length is None else None


FORCED = [[LETTERS[0]]]
ENDLESS = {
    "takes back": (Branch(backtrack=1), 3),
    "takes back and excludes nothing": (Branch(backtrack=2, exclude=TokenSet.none), 3),
    "spells anew": (Branch(backtrack=2, ff_tokens=FORCED), 3),
    "draws the end anew": (Branch(exclude=TokenSet.none), None),
    "takes back at the end": (Branch(backtrack=1), None),
}


class Long(Language):
    """Three letters and more of them, up to six."""

    def after(self, ids: Ids) -> frozenset[int]:
        return frozenset({*LETTERS[: 9 * (len(ids) < 6)], *([EOS] if len(ids) > 2 else [])})


LONG = Long(1)


@pytest.mark.parametrize("name", ENDLESS)
def test_a_policy_that_takes_back_for_ever_ends_with_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtracking, "_MAX_REWINDS", 30)
    branch, length = ENDLESS[name]
    row = steered(new_row([Allows(LONG), Insists(branch, length)]), 1)
    assert isinstance(row.error, UnsupportedBranch)
    assert "rewound the row 30 times" in str(row.error)
    assert row.counts.rewound_tokens == 30 * branch.backtrack
    assert row.counts.sampled_tokens < 40 * 6


def test_how_often_a_policy_says_that_it_goes_back_is_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtracking, "_MAX_REWINDS", 30)
    row = steered(new_row([Allows(LONG), Insists(Branch(backtrack=1, exclude=TokenSet.none), 3, most=50)]), 1)
    assert isinstance(row.error, RetriesSpent)
    assert "50 retries are spent" in str(row.error)
    assert row.retries == 50


def test_a_text_that_grows_may_be_taken_back_ever_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtracking, "_MAX_REWINDS", 5)

    class Respells(Insists):
        """Spells the last token anew, once after every token."""

        def branches(self, state: Ids, row: RowView) -> list[Branch]:
            return [self.branch if state and state[-1] == LETTERS[1] else Branch(sample_mask=TokenSet.of(LETTERS[1:2]))]

    row = steered(new_row([Respells(Branch(backtrack=1, ff_tokens=FORCED), 0)], max_tokens=20), 1)
    assert (row.piece.finish_reason, row.piece_ids) == ("length", [LETTERS[0]] * 20)


@pytest.mark.parametrize("branch", [Branch(exclude=TokenSet.none), Branch(backtrack=1, ff_tokens=FORCED)])
def test_a_policy_that_never_wants_a_sample_ends_with_an_error(branch: Branch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steering_module, "_MAX_BRANCHES", 40)
    row = steered(new_row([Allows(LONG), Insists(branch, 1)]), 1)
    assert isinstance(row.error, UnsupportedBranch)
    assert "after 40 branches" in str(row.error)


def test_at_an_end_a_policy_goes_back_or_lets_it_be() -> None:
    row = steered(new_row([Allows(LONG), Insists(Branch(sample_mask=TokenSet.all), None)]), 1)
    assert isinstance(row.error, UnsupportedBranch)
    assert "`at_end`" in str(row.error)


def test_random_numbers_for_decisions_belong_to_a_row_and_a_key_and_take_none_from_the_stream() -> None:
    rows = [
        row_of(StateRow.of_prompt(PROMPT, stream), [Allows(LONG)], random_model(), counts=Meter())
        for stream in (RandomStream(3), RandomStream(4), RandomStream(3, batch=1), RandomStream(3, sample=1))
    ]
    keys = [(), (0,), (1,), (0, 1), (1, 0)]
    found = {(number, key): row.uniform(*key) for number, row in enumerate(rows) for key in keys}
    assert len(set(found.values())) == len(found)
    assert all(0 <= value < 1 for value in found.values())
    assert found == {(number, key): row.uniform(*key) for number, row in enumerate(rows) for key in keys}
    assert [row.stream.drawn for row in rows] == [0] * 4


@dataclass(frozen=True)
class ForcesAnew(Policy[Ids]):
    """Refuses the third letter once, and has a text follow in its place: that letter and another, or the other way round."""

    begins_with_refused: bool
    refused: list[int] = field(default_factory=list, compare=False)

    def initial(self, row: RowView) -> Ids:
        return ()

    def advance(self, state: Ids, token_id: int) -> Ids:
        return (*state, token_id)

    def branches(self, state: Ids, row: RowView) -> list[Branch]:
        if not self.refused and len(state) == 3:
            self.refused.append(state[2])
            return [Branch(backtrack=1, exclude=TokenSet.of(state[2:]))]
        if self.refused and len(state) == 2:
            found = [self.refused[0], LETTERS[self.refused[0] == LETTERS[0]]]
            return [Branch(ff_tokens=[found if self.begins_with_refused else found[::-1]])]
        return [Branch(sample_mask=TokenSet.of(LETTERS))]


@pytest.mark.parametrize("seed", range(4))
def test_a_forced_text_stands_unless_its_first_token_was_refused_there(seed: int) -> None:
    appended, moved = (steered(new_row([ForcesAnew(begins)], max_tokens=5), seed) for begins in (False, True))
    assert (appended.error, moved.error) == (None, None)
    assert (appended.retries, moved.retries) == (1, 2)
    assert moved.piece_ids[2:4] == appended.piece_ids[2:4][::-1]
    assert moved.piece_ids[:1] == appended.piece_ids[:1]
    assert moved.piece_ids[1] != appended.piece_ids[1]  # it stands behind another letter than the one it was refused behind
