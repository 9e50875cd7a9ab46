"""The corpus of the bundled model: its parts share no word, and every record can be read from its message."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer

from scripts.tiny import corpus, styles, wide_phrases, words
from scripts.tiny.chats import END, TEMPLATE, TURN_TOKENS
from scripts.tiny.corpus import Message, Task
from scripts.tiny.documents import neat_documents
from scripts.tiny.mixture import SHARES, chat_documents, documents
from scripts.tiny.names import NameSource
from scripts.tiny.phrases import FAMILIES, GENERIC, NOISE
from scripts.tiny.wide import WideSource, reading_task, wide_task
from scripts.tiny.words import is_held_out

sys.path.insert(0, str(Path(__file__).parents[2]))


MODEL_FOLDER = Path(__file__).parents[2] / "outlines_cont" / "models" / "tiny"
NAMES = {"person", "agent", "city", "origin"}


def _messages(held_out: bool, count: int, seed: int = 5) -> list[corpus.Message]:
    source, rng = corpus.MessageSource(held_out), random.Random(seed)
    return [source.draw(rng, complete=False) for _ in range(count)]


def _strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for part in value.values() for text in _strings(part)]
    if isinstance(value, list | tuple):
        return [text for part in value for text in _strings(part)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("words_of_a_list", [words.FIRST_NAMES, words.LAST_NAMES, words.CITIES, words.NOUNS])
def test_both_parts_of_a_list_are_disjoint_and_not_empty(words_of_a_list: list[str]) -> None:
    training, held_out = (words.part_of(words_of_a_list, part) for part in (False, True))
    assert sorted(words_of_a_list) == sorted(training + held_out)
    assert set() == {word.lower() for word in training} & {word.lower() for word in held_out}
    assert min(len(training), len(held_out)) >= 5


def test_made_up_words_of_one_part_are_never_drawn_in_the_other() -> None:
    rng = random.Random(1)
    drawn = {part: {words.WordSource(part).made_up(rng, 1 + index % 3) for index in range(1000)} for part in (False, True)}
    assert set() == drawn[False] & drawn[True]
    assert {True} == {words.is_held_out(word) for word in drawn[True]}


def test_held_out_names_never_occur_in_training_messages() -> None:
    training = " ".join(message.text for message in _messages(False, 1500))
    seen = set(re.findall(r"\w+", training.lower()))
    names = words.part_of([*words.FIRST_NAMES, *words.LAST_NAMES], True)
    assert len(names) > 20
    for held_out in names:
        parts = re.findall(r"\w+", held_out.lower())
        assert len(parts) > 1 or parts[0] not in seen, held_out
    judged = 0
    for message in _messages(True, 300):
        # The first word of a name is always one that is held out: from a list, or of random syllables.
        first = str(message.facts.get("person", "")).split(" ")[0].split("-")[0].lower()
        judged += len(first) >= 5
        assert len(first) < 5 or first not in seen, first
    assert judged > 30


@pytest.mark.parametrize("held_out", [False, True])
def test_strings_of_a_record_stand_in_the_message(held_out: bool) -> None:
    rng = random.Random(2)
    strings = 0
    for message in _messages(held_out, 400):
        for fact, value in message.facts.items():
            if fact not in {"due", "dated", "currency"}:
                for text in _strings(value):
                    strings += 1
                    assert text in message.text, (fact, text, message.text)
        task = corpus.draw_task(rng, message)
        Draft202012Validator(task.schema).validate(task.record)
        assert list(task.record) == task.schema["required"]
        assert task.record == json.loads(task.text)
    assert strings > 400


def test_complete_messages_tell_every_fact_of_the_demo() -> None:
    source, rng = corpus.MessageSource(True), random.Random(3)
    for index in range(300):
        kind = corpus.DEMO_KINDS[index % len(corpus.DEMO_KINDS)]
        message = source.draw(rng, kind, complete=True)
        task = corpus.demo_task(message)
        Draft202012Validator(task.schema).validate(task.record)
        assert kind == message.kind
        assert re.fullmatch(corpus.DUE_PATTERN, message.due)


def test_the_same_seed_draws_the_same_documents() -> None:
    first, second = (neat_documents(random.Random(4)) for _ in range(2))
    assert [next(first) for _ in range(50)] == [next(second) for _ in range(50)]


def test_every_slot_of_every_sentence_is_a_known_fact() -> None:
    known = {*corpus.FACTS, "goods", "money", "salary_money", "noise_person", "noise_city", "noise_date", "noise_ref"}
    templates = [*NOISE, *(text for group in GENERIC.values() for text in group)]
    for family in FAMILIES.values():
        templates += [*family.cores, *(text for group in family.sentences.values() for text in group)]
        assert len(family.cores) >= 12
    assert set() == {slot for text in templates for slot in re.findall(r"{(\w+)}", text)} - known


def test_the_shipped_tokenizer_spells_a_prompt_like_its_parts() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    for message in _messages(True, 100):
        for step in ("\nKind: ", "\nRecord: ", "\nDue: "):
            whole = "Message: " + message.text + step
            parts = tokenizer.encode("Message: " + message.text).ids + tokenizer.encode(step).ids
            assert parts == tokenizer.encode(whole).ids
            assert whole == tokenizer.decode(parts)


sys.path.insert(0, str(Path(__file__).parents[2]))


OTHER_STYLES = Path(__file__).parents[1] / "model" / "other_styles.jsonl"


def _wide_messages(count: int, seed: int = 5, held_out: bool = False) -> list[Message]:
    source, rng = WideSource(held_out), random.Random(seed)
    return [source.draw(rng) for _ in range(count)]


@pytest.mark.parametrize("held_out", [False, True])
def test_strings_of_a_record_stand_in_the_message_as_it_is_spelled(held_out: bool) -> None:
    rng = random.Random(2)
    strings = 0
    for message in _wide_messages(250, held_out=held_out):
        for fact, value in message.facts.items():
            if fact not in {"due", "dated", "currency"}:
                for text in _strings(value):
                    strings += 1
                    assert text.lower() in message.text.lower() if fact in {"resolution", "severity"} else text in message.text
        for task in (reading_task(rng, message), wide_task(rng, message)):
            Draft202012Validator(task.schema).validate(task.record)
            assert list(task.record) == task.schema["required"]
            assert task.record == json.loads(task.text)
    assert strings > 400


def _told(task: Task) -> list[object]:
    return [value for value in task.record.values() if value not in (None, "", 0)]


def test_messages_of_no_kind_have_empty_records() -> None:
    rng = random.Random(3)
    others = [message for message in _wide_messages(400) if message.kind == "other"]
    assert len(others) > 20
    for message in others:
        assert message.text
        assert _told(reading_task(rng, message)) + _told(wide_task(rng, message)) == []


def test_no_name_of_one_part_is_drawn_in_the_other() -> None:
    rng = random.Random(4)
    made = {part: {NameSource(part).made_up(rng, 2).lower() for _ in range(200)} for part in (False, True)}
    assert {True} == {is_held_out(word) for word in made[True]}
    assert {False} == {is_held_out(word) for word in made[False]}


def test_every_slot_of_every_sentence_is_spelled_by_each_message() -> None:
    texts = [message.text for message in _wide_messages(500, seed=6)]
    assert [text for text in texts if re.search(r"\{\w+\}|\(\w+\|", text)] == []
    assert len({text[:20] for text in texts}) > 350


def test_alternatives_are_taken_one_by_one_and_mistakes_leave_slots_alone() -> None:
    rng = random.Random(5)
    assert {"a c", "b c"} == {styles.expanded(rng, "(a|b) (c|c)") for _ in range(30)}
    assert {"x", "x yz", "x z"} == {styles.expanded(rng, "x( (y|)z|)") for _ in range(60)}
    for family in wide_phrases.WIDE_FAMILIES.values():
        for core in family.cores:
            template = styles.expanded(rng, core)
            slots = re.findall(r"\{\w+\}", template)
            assert slots == re.findall(r"\{\w+\}", styles.misspelt(rng, template, 0.5))


def test_a_conversation_is_what_the_template_writes_for_its_messages() -> None:
    template = ImmutableSandboxedEnvironment().from_string(TEMPLATE)
    source = chat_documents(random.Random(6))
    for _ in range(100):
        document = next(source)
        for branch in document.branches:
            text = document.prompt + "".join(piece.appended + piece.text for piece in branch) + END
            turns = re.findall(r"<\|(\w+)\|>(.*?)<eos>", text, re.DOTALL)
            messages = [{"role": role, "content": content} for role, content in turns]
            assert text == template.render(messages=messages, eos_token=END)
            assert {f"<|{role}|>" for role, _ in turns} <= set(TURN_TOKENS)
            assert turns[-1][0] == "assistant"


def test_the_same_seed_draws_the_same_mixture() -> None:
    first, second = (documents(random.Random(4)) for _ in range(2))
    assert [next(first) for _ in range(30)] == [next(second) for _ in range(30)]
    assert sum(SHARES.values()) == pytest.approx(1)


def test_training_never_writes_what_stands_in_the_forty_messages() -> None:
    def windows(text: str) -> set[tuple[str, ...]]:
        found = re.findall(r"\w+", text.lower())
        return {tuple(found[at : at + 6]) for at in range(len(found) - 5)}

    wanted = [json.loads(line)["text"] for line in OTHER_STYLES.read_text(encoding="utf-8").splitlines()]
    theirs = set[tuple[str, ...]]().union(*map(windows, wanted))
    ours = set[tuple[str, ...]]().union(*(windows(message.text) for message in _wide_messages(1000, seed=8)))
    assert set() == theirs & ours
