"""Images on the command line: `extract` with image files and tables, `chat --image`, and what is refused before a model is loaded."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from outlines_cont import generate, samplers
from outlines_cont.cli.__main__ import app
from outlines_cont.cli.chat import ChatSession
from tests.image_models import image_model, parts, picture
from tests.images.test_chat import chat_of
from tests.images.test_extractor import SCHEMA, png, seen

pytestmark = pytest.mark.filterwarnings("ignore:.*torchvision.*")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("command")
    network, processor = parts("llava")
    network.save_pretrained(found / "model")
    processor.save_pretrained(found / "model")
    (found / "schema.json").write_text(json.dumps(SCHEMA))
    for seed in (1, 2):
        (found / f"{seed}.png").write_bytes(png(seed))
    (found / "rows.jsonl").write_text("".join(json.dumps({"id": seed, "scan": str(found / f"{seed}.png")}) + "\n" for seed in (2, 1, 3)))
    (found / "prompt.jinja").write_text("<image>\nRecord: ")
    return found


def extract(folder: Path, *arguments: str) -> Result:
    given = ["--schema", str(folder / "schema.json"), "--model", str(folder / "model"), "--max-tokens", "60"]
    return CliRunner().invoke(app, ["extract", *arguments, *given])


def test_image_files_and_tables_have_the_records_of_the_plain_loop(folder: Path) -> None:
    model = image_model("llava")
    record = generate.json(model, SCHEMA)
    wanted = {seed: record(seen(model, seed), max_tokens=60) for seed in (1, 2)}
    found = extract(folder, str(folder / "1.png"), str(folder / "2.png"))
    assert found.exit_code == 0, found.stderr
    lines = [*map(json.loads, found.stdout.splitlines())]
    assert [line["record"] for line in lines] == [wanted[1], wanted[2]]
    assert lines[0]["image"] == str(folder / "1.png")
    table = extract(folder, str(folder / "rows.jsonl"), "--images", "scan", "--prompt", str(folder / "prompt.jinja"))
    assert table.exit_code == 1  # a file is missing
    lines = [*map(json.loads, table.stdout.splitlines())]
    assert [line.get("record") for line in lines] == [wanted[2], wanted[1], None]
    assert lines[2]["error"]["type"] == "ImageError"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{}/1.png", "{}/rows.jsonl"], "image files"),
        (["{}/rows.jsonl", "{}/rows.jsonl"], "image files"),
        (["{}/1.png", "--images", "a", "--images", "b"], "one --images NAME"),
        (["{}/rows.jsonl", "--images", "scan", "--prompt", "{}/schema.json"], "for the image of each field"),
    ],
)
def test_inputs_that_are_no_images_are_refused(folder: Path, arguments: list[str], message: str) -> None:
    refused = extract(folder, *(one.format(folder) for one in arguments))
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert message in " ".join(refused.stderr.split())


def test_the_bundled_model_takes_no_images(folder: Path) -> None:
    given = ["extract", str(folder / "1.png"), "--schema", str(folder / "schema.json")]
    refused = CliRunner().invoke(app, given)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "expected --model with images" in " ".join(refused.stderr.split())


def test_the_next_message_of_a_conversation_has_the_image(folder: Path) -> None:
    out, chat = io.StringIO(), chat_of("llava", rng=0)
    session = ChatSession(chat, samplers.greedy(), 4, out)
    session.run(iter([f"/image {folder / '1.png'}", "What?", "And?", "/image", f"/image {folder / 'none.png'}", "So?"]))
    wanted = chat.user([picture(1), "What?"]).assistant(generate.text(chat.model), max_tokens=4)
    assert session.chat[:2].messages[1]["content"] == wanted.messages[1]["content"]
    assert [isinstance(one["content"], list) for one in session.chat.messages[::2]] == [True, False, False]
    told = out.getvalue()
    assert "is part of your next message" in told
    assert "cannot be read" in told
