"""Banned phrases in generators: what is written, what it costs, what happens where nothing else can be written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import fsm
from outlines_cont import continuous, control, generate, models, policies, samplers
from outlines_cont.errors import BanImpossible, IncompleteOutput, OptionError, RetriesSpent
from tests.examples import examples
from tests.fakes import EOS, FakeTokenizer, random_model, saying, scripted_model

IDS = {data: token_id for token_id, data in enumerate(FakeTokenizer().token_bytes) if data}
MESSAGE = "Message: Hello, this is Marta Keller. Please send 12 desk lamps to Porto by 2031-05-14.\nRecord: "
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"customer": {"type": "string"}, "city": {"type": "string"}, "item": {"type": "string"}},
    "required": ["customer", "city", "item"],
    "additionalProperties": False,
}


def either(*texts: str) -> Any:
    """A script that writes the first of some texts that the row has begun, byte by byte, then ends; the second is less probable."""

    def script(ids: list[int]) -> dict[int, float]:
        written = FakeTokenizer().text_bytes(ids).split(b">")[-1]
        logits: dict[int, float] = {}
        for rank, text in enumerate(texts):
            if text.encode().startswith(written):
                rest = text.encode()[len(written) :]
                logits.setdefault(IDS[rest[:1]] if rest else EOS, 60.0 - 10 * rank)
        return logits

    return script


# What is written.


def written(*texts: str, prompt: str = "x>", **options: Any) -> str:
    """What is written by a model that likes the first text most."""
    return generate.text(scripted_model(either(*texts)))(prompt, **{"max_tokens": 40, **options})


CAT, BUT = policies.ban(["cat"], whole_word=True), policies.ban(re.compile("not .+ but"), horizon=12)
WRITTEN: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "from where the phrase begins": ("a rich field", ("a rich tapestry", "a rich field"), {"policies": [policies.ban(["TAPESTRY"])]}),
    **{
        f"from the token in which the match begins: {phrases}": (
            "I can do it", ("I can can not", "I can do it"), {"policies": [policies.ban(phrases)]},
        )
        for phrases in (["can not"], ["CAN NOT", "not"], ["n not", "can not", "can no"])
    },
    "a prompt is no part of the text": ("ven today", ("ven today", "ton today"), {"prompt": "hea>", "policies": [policies.ban(">ven")]}),
    "a prompt on request": (
        "ton today", ("ven today", "ton today"), {"prompt": "hea>", "policies": [policies.ban(">ven", include_prompt=True)]},
    ),
    "a whole word at the end, when the end is drawn": ("the dog", ("the cat", "the dog"), {"policies": [CAT]}),
    "a part of a word is no whole one": ("a category", ("a category",), {"policies": [CAT]}),
    "a whole word at the end that a stop text leaves": (
        "a talk", ("a walking", "a talk"), {"stop_at": "ing", "policies": [policies.ban(["walk"], whole_word=True)]},
    ),
    "a pattern, up to its end": (
        "it is quite big", ("it is not only big but red", "it is quite big"), {"policies": [policies.ban(re.compile(r"not .{3,20} but"))]},
    ),
    "an unbounded pattern within its horizon": ("is big but", ("not big but", "is big but"), {"policies": [BUT]}),
    "an unbounded pattern beyond its horizon": ("not very very big but", ("not very very big but",), {"policies": [BUT]}),
    "an expression": ("due soon", ("due 2031-05-14", "due soon"), {"policies": [policies.ban(fsm.types.date)]}),
    "several policies together": (
        "big elk !", ("big cat END", "big dog END", "big elk END"),
        {"policies": [policies.ban(["cat"]), policies.ban(["dog"]), policies.replace({"END": "!"})], "stop_at": "zzz"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_the_text_goes_on_otherwise(name: str) -> None:
    expected, texts, options = WRITTEN[name]
    assert expected == written(*texts, **options)


def test_a_factor_of_one_changes_nothing() -> None:
    generator = generate.text(random_model(), sampler=samplers.multinomial(3))

    plain = generator("x>", max_tokens=20, rng=3)

    assert plain == generator("x>", max_tokens=20, rng=3, policies=[policies.ban({"a": 1.0, "e": 1})])
    assert plain == generator("x>", max_tokens=20, rng=3, policies=[policies.ban([])])


# With a constraint.


def test_json_without_the_phrase_is_valid_and_more_probable_than_what_a_mask_spells_around_it() -> None:
    model = models.tiny()

    banned = continuous(generate.json(model, SCHEMA))(MESSAGE, policies=[policies.ban(["Keller"])])
    masked = fsm.json_schema(SCHEMA) & ~fsm.regex("(?is:.*keller.*)")
    around = continuous(generate.fsm(model, masked))(MESSAGE)

    record = banned.values[0][0]
    assert list(record) == ["customer", "city", "item"]
    assert "kell" not in str(record).casefold()
    assert "Kell" in around.values[0][0]  # such as Kella
    assert float(banned.weights) > float(around.weights) + 1


def test_a_ban_that_leaves_nothing_fails_its_row() -> None:
    generator = generate.choice(random_model(), ["abc"])

    with pytest.raises(BanImpossible, match=r"expected a text without 'abc' after .*Loosen"):
        generator("x>", policies=[policies.ban("abc")])
    with pytest.raises(BanImpossible):
        generate.choice(random_model(), ["abc", "bcd"], force=False)("x>", policies=[policies.ban(["b"])])
    assert generator("x>", policies=[policies.ban("abc", on_exhausted="allow")]) == "abc"
    assert generator("x>") == "abc"


def test_only_what_cannot_be_avoided_is_let_pass() -> None:
    model = scripted_model(either("abc abc tail abc", "abc abc tail bcd"))
    generator = generate.regex(model, "abc abc tail [a-d]{3}")

    assert generator("x>", policies=[policies.ban("abc", on_exhausted="allow")]) == "abc abc tail bcd"


def test_retries_have_a_budget() -> None:
    model = random_model()
    ban = policies.ban(list("abcdefghijklmnopqrstuvwxyz"), max_retries=5)
    generator = generate.regex(model, "[a-z]{4}", force=False)

    with pytest.raises(BanImpossible, match="5 retries are spent"):
        generator("x>", policies=[ban])
    state = continuous(generator)("x>", policies=[policies.ban(["a", "e"], max_retries_per_place=3)])
    assert not {"a", "e"} & set(state.values[0][0])


def test_beams_keep_the_texts_without_the_phrase() -> None:
    model = random_model()
    options = ["the ant", "the other", "red", "green", "no", "nose"]

    free = continuous(generate.choice(model, options, sampler=samplers.beam_search(16)))("x>")
    banned = continuous(generate.choice(model, options, sampler=samplers.beam_search(16)))(
        "x>", policies=[policies.ban(["nose", "the ant", "reen"])]
    )

    kept = dict(zip(free.values[0], free.weights[0].tolist(), strict=True))
    assert dict(zip(banned.values[0], banned.weights[0].tolist(), strict=True)) == pytest.approx(
        {text: kept[text] for text in ("the other", "red", "no")}
    )


def test_a_script_of_control_has_bans_of_its_own() -> None:
    async def script() -> None:
        await control.gen(choice=["red", "green", "blue"], name="colour", policies=[policies.ban(["RE", "u"], on_exhausted="allow")])
        await control.gen(choice=["red", "blue"], name="other", policies=[policies.ban(["RE"])])

    captures = control.run(random_model(), script, "x>").captures

    assert captures["other"] == "blue"


def test_text_that_was_shown_is_not_taken_back() -> None:
    class Shown:
        healed = b""
        token_ids = (1, 2, 3)
        piece_start = 1
        first_open = 3

    ban = policies.ban("ab").for_model(random_model())
    lenient = policies.ban("ab", on_exhausted="allow").for_model(random_model())
    state = ban.initial(Shown())  # type: ignore[arg-type]
    for byte in b"ab":
        state = ban.advance(state, IDS[bytes([byte])])

    with pytest.raises(BanImpossible, match="streamed already"):
        ban.branches(state, Shown())  # type: ignore[arg-type]
    assert [branch.backtrack for branch in lenient.branches(state, Shown())] == [0]  # type: ignore[arg-type]


# What it costs, and what it remembers.


def test_a_retry_takes_no_forward_and_the_next_one_feeds_one_token() -> None:
    text, other = "a rich tapestry of life", "a rich field of life"
    model = scripted_model(either(text, other))

    with model.meter() as meter:
        state = continuous(generate.text(model))("x>", policies=[policies.ban(["tapestry"])], max_tokens=60)

    # The prompt; then each token in a forward of its own, those that were given back too.
    assert meter.forwards == 1 + len(other) + len("tapestry") - 1
    assert meter.recomputed_tokens == 0
    assert int(state.retries) == 1


# What is given.


@pytest.mark.parametrize(
    ("phrases", "options", "message"),
    [
        ([""], {}, "one character or more"),
        ("", {}, "one character or more"),
        (b"abc", {}, "write what is to be banned as a str"),
        ([b"abc"], {}, "write what is to be banned as a str"),
        ([3], {}, "one character or more"),
        (3, {}, "one character or more"),
        (None, {}, "one character or more"),
        (["\ud800"], {}, "lone surrogate"),
        ({"a": 1.5}, {}, "a factor from 0 to 1"),
        ({"a": -0.1}, {}, "a factor from 0 to 1"),
        ({"a": True}, {}, "a factor from 0 to 1"),
        ({"a": float("nan")}, {}, "a factor from 0 to 1"),
        ({"a": "0.5"}, {}, "a factor from 0 to 1"),
        (re.compile(b"a"), {}, "one over bytes"),
        (re.compile("a*"), {}, "matches the empty text"),
        (re.compile("a+"), {}, "a stated `horizon`"),
        (re.compile(r"(a)\1"), {}, "can be searched for"),
        (fsm.regex("a+"), {}, "a stated `horizon`"),
        (fsm.regex("a{0,3}"), {}, "matches the empty text"),
        (fsm.regex("a") & fsm.regex("b"), {}, "some text satisfies"),
        (["a"], {"horizon": 0}, "`horizon`"),
        (["a"], {"max_retries": -1}, "`max_retries`"),
        (["a"], {"max_retries": True}, "`max_retries`"),
        (["a"], {"max_retries_per_place": 0}, "`max_retries_per_place`"),
        (["a"], {"on_exhausted": "ignore"}, "'error' or 'allow'"),
    ],
)
def test_what_cannot_be_banned_is_refused(phrases: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        policies.ban(phrases, **options)


def test_phrases_may_be_the_same_overlap_or_be_beyond_all_tokens() -> None:
    ban = policies.ban({"Tapestry": 0.5, "tapestry": 0.1, "TAPESTRY": 1})

    assert [(rule.shown, rule.factor) for rule in ban.rules] == [("tapestry", 0.1)]
    text = generate.text(scripted_model(saying("abcabc")), sampler=samplers.greedy())
    assert text("x>", policies=[policies.ban(["bcab", "cabcd", "\U0010fffd"], on_exhausted="allow")], max_tokens=3) == "abc"


def test_a_ban_without_a_model_says_what_is_missing() -> None:
    with pytest.raises(TypeError, match="for_model"):
        _ = policies.ban("a").horizon


# Lists.


def test_a_list_of_phrases_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "phrases.json"
    path.write_text(json.dumps([["tapestry", 0.03], ["a testament to", 0], "delve", ["tapestry", 0.5]]))

    assert policies.load_phrases(path) == {"tapestry": 0.03, "a testament to": 0, "delve": 0.0}
    path.write_text('{"delve": 0.1}')
    assert policies.load_phrases(str(path)) == {"delve": 0.1}


@pytest.mark.parametrize("text", ["", "3", "[3]", '[["a"]]', '[["a", "b"]]', '[["a", true]]', "[[1, 2]]"])
def test_a_file_that_is_no_list_of_phrases_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "phrases.json"
    path.write_text(text)

    with pytest.raises(OptionError, match=r"phrases\.json"):
        policies.load_phrases(path)


def test_a_text_that_is_put_off_until_it_is_cut_names_the_retries() -> None:
    write = generate.regex(scripted_model(saying("so it is the end")), "[a-z ]* end", force=False)
    with pytest.raises(IncompleteOutput, match=r"after \d+ retries of its policies"):
        write(">", max_tokens=20, policies=[policies.ban("end")])


@pytest.mark.parametrize("most", [None, 1])
def test_a_policy_is_told_of_its_own_rewinds_and_not_of_those_of_the_engine(most: int | None) -> None:
    asked, told = [], []
    first, second = [65, 66], [67, 68]

    class Refuses(policies.Policy[None]):
        """Refuses both tokens that may follow the first of two, so that the engine itself goes back to the other one."""

        max_retries_per_place = most

        def initial(self, row: Any) -> None:
            return None

        def advance(self, state: None, token_id: int) -> None:
            return None

        def branches(self, state: None, row: Any) -> list[policies.Branch]:
            ids = row.token_ids[row.piece_start :]
            if len(ids) < 2:
                return [policies.Branch(sample_mask=policies.TokenSet.of(second if ids else first))]
            if ids[0] != first[0]:
                return []
            asked.append(ids)
            return [policies.Branch(backtrack=1, exclude=policies.TokenSet.of([ids[1]]))]

        def rewound(self, before: None, after: None, row: Any) -> None:
            told.append(row.token_ids[row.piece_start :])

    model = random_model()
    for seed in range(examples(8)):
        (row,) = continuous(generate.text(model))("the name", policies=[Refuses()], rng=seed).rows[0]
        assert row.token_ids[-2] == first[1]
    assert len(asked) > 2
    assert told == asked


def test_a_policy_that_returns_no_list_of_branches_is_named() -> None:
    class Single(policies.Policy[None]):
        def initial(self, row: Any) -> None:
            return None

        def advance(self, state: None, token_id: int) -> None:
            return None

        def branches(self, state: None, row: Any) -> Any:
            return policies.Branch(sample_mask=policies.TokenSet.all)

    with pytest.raises(TypeError, match="from `branches` of Single"):
        generate.text(random_model())("the name", max_tokens=3, policies=[Single()])


@pytest.mark.parametrize(("wish", "end"), [("", "spent."), ("a digit", "spent. What it requires next: a digit.")])
def test_the_error_of_a_policy_whose_retries_are_spent_is_short_and_has_its_wish(wish: str, end: str) -> None:
    class Never(policies.Policy[None]):
        max_retries = 2

        def __repr__(self) -> str:
            return f"<Never {'x' * 10_000}>"

        def initial(self, row: Any) -> None:
            return None

        def advance(self, state: None, token_id: int) -> None:
            return None

        def branches(self, state: None, row: Any) -> list[policies.Branch]:
            if len(row.token_ids) == row.piece_start:
                return [policies.Branch(sample_mask=policies.TokenSet.all)]
            return [policies.Branch(backtrack=1, exclude=policies.TokenSet.of([row.token_ids[-1]]))]

        def wish(self, state: None, row: Any) -> str:
            return wish

    with pytest.raises(RetriesSpent) as refused:
        generate.text(random_model())("the name", max_tokens=3, policies=[Never()])
    assert str(refused.value).endswith(end)
    assert len(str(refused.value)) < 200


def test_an_expression_with_checks_is_no_phrase() -> None:
    unique = fsm.json_schema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})
    with pytest.raises(OptionError, match="expected an expression that its automaton decides"):
        policies.ban(unique)
