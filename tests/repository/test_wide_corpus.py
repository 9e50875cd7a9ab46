"""The wider text of the bundled model: records can be read from their messages, and conversations are what the template writes."""

import json
import random
import re
import sys
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jsonschema import Draft202012Validator

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.tiny import styles, wide_phrases
from scripts.tiny.chats import END, TEMPLATE, TURN_TOKENS
from scripts.tiny.corpus import Message, Task
from scripts.tiny.mixture import SHARES, chat_documents, documents
from scripts.tiny.names import NameSource
from scripts.tiny.wide import WideSource, reading_task, wide_task
from scripts.tiny.words import is_held_out
from tests.repository.test_corpus import _strings

OTHER_STYLES = Path(__file__).parents[1] / "model" / "other_styles.jsonl"


def _messages(count: int, seed: int = 5, held_out: bool = False) -> list[Message]:
    source, rng = WideSource(held_out), random.Random(seed)
    return [source.draw(rng) for _ in range(count)]


@pytest.mark.parametrize("held_out", [False, True])
def test_strings_of_a_record_stand_in_the_message_as_it_is_spelled(held_out: bool) -> None:
    rng = random.Random(2)
    strings = 0
    for message in _messages(250, held_out=held_out):
        for fact, value in message.facts.items():
            if fact not in {"due", "dated", "currency"}:
                for text in _strings(value):
                    strings += 1
                    assert (
                        text.lower() in message.text.lower()
                        if fact in {"resolution", "severity"}
                        else text in message.text
                    )
        for task in (reading_task(rng, message), wide_task(rng, message)):
            Draft202012Validator(task.schema).validate(task.record)
            assert list(task.record) == task.schema["required"]
            assert task.record == json.loads(task.text)
    assert strings > 400


def _told(task: Task) -> list[object]:
    return [value for value in task.record.values() if value not in (None, "", 0)]


def test_messages_of_no_kind_have_empty_records() -> None:
    rng = random.Random(3)
    others = [message for message in _messages(400) if message.kind == "other"]
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
    texts = [message.text for message in _messages(500, seed=6)]
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
    ours = set[tuple[str, ...]]().union(*(windows(message.text) for message in _messages(1000, seed=8)))
    assert set() == theirs & ours
