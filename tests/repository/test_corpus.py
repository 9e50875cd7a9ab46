"""The corpus of the bundled model: the two parts share no word, and every record can be read from its message."""

import json
import random
import re
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[2]))

from scripts.tiny import corpus, words
from scripts.tiny.documents import neat_documents
from scripts.tiny.phrases import FAMILIES, GENERIC, NOISE

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
    drawn = {
        part: {words.WordSource(part).made_up(rng, 1 + index % 3) for index in range(1000)} for part in (False, True)
    }
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
