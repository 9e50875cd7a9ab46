"""The drawings of the bundled vision model: patches have the characters that are drawn there, and training knows no held-out word."""

from __future__ import annotations

import json
import random

import pytest

from outlines_cont.cli.receipts import DemoWords, ReceiptWriter, Style
from scripts.tiny_vision.documents import CHARACTERS, COLUMNS, NAMES, NUM_SLOTS, ROWS, branches, slots_of
from scripts.tiny_vision.fonts import HELD_OUT, TRAINED
from scripts.tiny_vision.words import ReceiptWords


def _words(words: ReceiptWords | DemoWords, seed: int) -> set[str]:
    rng = random.Random(seed)
    return {text for _ in range(400) for text in (words.shop(rng), words.place(rng))}


def test_training_never_draws_a_shop_or_place_of_the_demo_or_of_the_other_part() -> None:
    training, held_out, demo = _words(ReceiptWords(False), 0), _words(ReceiptWords(True), 0), _words(DemoWords(), 0)
    assert not training & held_out
    assert not (training | held_out) & demo
    parts = {word for text in training for word in text.split()}
    assert not parts & {*DemoWords.NAMES, *DemoWords.PLACES}


def test_no_font_is_both_trained_and_held_out() -> None:
    assert not {*TRAINED} & {*HELD_OUT}


@pytest.mark.parametrize("seed", range(5))
def test_the_patches_of_a_picture_have_its_characters_in_reading_order(seed: int) -> None:
    rng, writer = random.Random(seed), ReceiptWriter(ReceiptWords(False))
    for _ in range(20):
        receipt = writer.write(rng)
        placed = Style.drawn(rng, len(receipt.lines)).place(receipt.lines)
        if placed is None:
            continue
        slots = slots_of(placed)
        assert slots.shape == (ROWS * COLUMNS, NUM_SLOTS)
        read = "".join(CHARACTERS[number - 1] for number in slots.flatten() if number)
        drawn = "".join(text for line in receipt.lines for text in line)
        lost = len(drawn) - len(read)  # of patches with more characters than slots
        assert lost >= 0
        rest = iter(drawn)
        assert all(character in rest for character in read)
        assert lost <= 3


@pytest.mark.parametrize("seed", range(5))
def test_the_answers_of_a_document_are_facts_of_its_receipt(seed: int) -> None:
    rng, writer = random.Random(seed), ReceiptWriter(ReceiptWords(False))
    keys = {name: key for key, names in NAMES.items() for name in names}
    for _ in range(20):
        receipt = writer.write(rng)
        (_, record), *questions, (_, text) = branches(receipt, rng)
        for name, value in json.loads(record).items():
            wanted = receipt.record[keys[name]]
            if name == "items":
                value = [(one["name"], f"{one['price']:.2f}") for one in value]
            assert wanted == (f"{value:.2f}" if keys[name] == "total" else value)
        for appended, answer in questions:
            assert receipt.record[keys[appended.strip(" :\n").lower()]] == answer
        assert text.count("\n") == len(receipt.lines) - 1
