"""The bundled vision model on pictures of words that it was not trained on."""

from __future__ import annotations

import json
import pickle
import random
import sys
from importlib.resources import as_file, files
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from outlines_cont import continuous, generate, models
from outlines_cont.cli.__main__ import app
from outlines_cont.cli.demo_images import PROMPT, Receipt, read_receipts
from outlines_cont.cli.receipts import HEIGHT, WIDTH, DemoWords, ReceiptWriter, Style, demo_receipts
from outlines_cont.models import HuggingFaceModel

AMOUNT, DAY = r"[0-9]{1,5}\.[0-9]{2}", r"20[0-9]{2}-[01][0-9]-[0-3][0-9]"
RIGHT_FIELDS = 0.85
"""Share of fields that must be right, well below what the model card says."""


@pytest.fixture(scope="module")
def model() -> HuggingFaceModel:
    return models.tiny_vision()


def test_it_is_small_opens_in_float32_and_takes_images(model: HuggingFaceModel) -> None:
    with as_file(files("outlines_cont.models") / "tiny_vision") as folder:
        assert sum(path.stat().st_size for path in folder.iterdir()) < 6_000_000
        assert (folder / "MODEL_CARD.md").is_file()
    assert model.dtype == torch.float32
    assert model.capabilities.images, model.capabilities.images.why
    assert model.capabilities.fused, model.capabilities.fused.why
    assert pickle.loads(pickle.dumps(model)) is model  # noqa: S301


def test_it_reads_receipts_of_words_that_it_was_not_trained_on(model: HuggingFaceModel) -> None:
    rows = read_receipts(model, seed=1, count=12)
    assert all(row.error is None for row in rows)
    right = sum(len(row.right) for row in rows)
    assert right >= RIGHT_FIELDS * 12 * len(Receipt.model_fields), [(row.expected, row.record) for row in rows]


def test_what_it_reads_depends_on_the_picture(model: HuggingFaceModel) -> None:
    """The same question about other pictures, in one batch: an answer that ignored its image would be the same in all rows."""
    pictures = [picture for _, picture in demo_receipts(2, 4)]
    states = model.see(["<image>\nTotal: "] * 4, images=[[picture] for picture in pictures])
    read = continuous(generate.regex(model, AMOUNT))(states)
    alone = [continuous(generate.regex(model, AMOUNT))(model.see("<image>\nTotal: ", images=[one])).value for one in pictures]
    assert len({value for (value,) in read.values}) == 4
    assert alone == [value for (value,) in read.values]


def test_questions_forks_and_slices_behind_a_picture_see_it_once(model: HuggingFaceModel) -> None:
    ((_, picture),) = demo_receipts(3, 1)
    ask_total, ask_day = continuous(generate.regex(model, AMOUNT)), continuous(generate.regex(model, DAY))
    model.prefix_cache.clear()  # of what other tests have seen
    with model.meter() as meter:
        seen = model.see("Read this receipt: <image>", images=[picture])
        record = continuous(generate.json(model, Receipt, whitespace="none"))(seen + "\nRecord: ", max_tokens=200)
        behind = record.crop(slice(len(str(seen))))
        answers = ask_total((behind + "\nTotal: ").fork(2))
        day = ask_day(behind + "\nDate: ")
    assert meter.images == 1
    assert answers.values[0][0] == answers.values[0][1] == ask_total(seen + "\nTotal: ").value
    again = ask_day(behind.detach_cache() + "\nDate: ")
    assert (again.value, str(again)) == (day.value, str(day))


@pytest.mark.parametrize("seed", range(3))
def test_a_receipt_tells_its_record_and_is_drawn_the_same_again(seed: int) -> None:
    rng, writer = random.Random(seed), ReceiptWriter(DemoWords())
    for _ in range(30):
        receipt = writer.write(rng)
        texts = [text for line in receipt.lines for text in line]
        assert receipt.lines[0] == (receipt.record["shop"],)
        assert receipt.record["place"] in texts[1]
        assert any(receipt.record["total"] in text.replace(",", ".") for text in texts)
        assert receipt.record["date"][:4] in " ".join(texts)
        style = Style.drawn(rng, len(receipt.lines))
        placed = style.place(receipt.lines)
        if placed is None:
            with pytest.raises(ValueError, match="expected lines of which each fits"):
                style.draw(receipt.lines)
            continue
        assert all(one.x >= 0 and one.x + one.ends[-1] <= WIDTH and 0 < one.y < HEIGHT for one in placed)
        image = style.draw(receipt.lines)
        assert image.size == (WIDTH, HEIGHT)
        assert image.tobytes() == style.draw_placed(placed).tobytes()


def test_the_demo_compares_what_it_read_with_what_it_drew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlines_cont.cli.demo_images.NUM_RECEIPTS", 5)
    output, report = tmp_path / "records.jsonl", tmp_path / "report.html"
    command = ["demo", "--images", "--output", str(output), "--report", str(report)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    expected = [receipt.record for receipt, _ in demo_receipts(0, 5)]
    assert [(row["receipt"], row["expected"]["shop"]) for row in rows] == [(n, one["shop"]) for n, one in enumerate(expected, 1)]
    right = sum(row["record"][name] == value for row in rows for name, value in row["expected"].items())
    assert f"{right} of 25 fields right" in result.stdout
    assert "5 pictures seen" in result.stdout
    assert ("[" in result.stdout) == (right < 25)
    assert max(map(len, result.stdout.splitlines()[:-2])) <= 80
    assert ("data:image/jpeg" in report.read_text(encoding="utf-8")) == (right < 25)
    assert CliRunner().invoke(app, command).exit_code == 0  # its own output is replaced


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--images", "--stream"], "expected --images or --stream, got both"),
        (["--report", "page.html"], "expected --images with --report"),
        (["--images", "--report", "page.txt"], "expected a file that ends in .html or .htm as --report"),
    ],
)
def test_options_of_the_demo_that_exclude_each_other(tmp_path: Path, options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["demo", *options, "--output", str(tmp_path / "records.jsonl")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert not list(tmp_path.iterdir())


def test_without_pillow_the_demo_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    result = CliRunner().invoke(app, ["demo", "--images", "--output", str(tmp_path / "records.jsonl")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert "outlines-cont[images]" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_model_of_texts_is_refused_by_the_demo_of_images(tmp_path: Path) -> None:
    with as_file(files("outlines_cont.models") / "tiny") as folder:
        result = CliRunner().invoke(app, ["demo", "--images", "--model", str(folder), "--output", str(tmp_path / "records.jsonl")])
    assert result.exit_code == 2
    assert "takes no images" in result.stderr


def test_a_chat_with_a_picture_is_answered_by_its_record(model: HuggingFaceModel) -> None:
    from outlines_cont import Chat

    ((_, picture),) = demo_receipts(4, 1)
    reply = Chat(model).user([picture]).assistant(generate.json(model, Receipt, whitespace="none"), max_tokens=200)
    state = continuous(generate.json(model, Receipt, whitespace="none"))(model.see(PROMPT, images=[picture]), max_tokens=200)
    assert reply.value == state.value
