"""Records of images: tables of paths, bytes and pictures against the plain loop; rows that fail alone; files, reports and digests."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from outlines_cont import Chat, generate, models, pipelines, samplers
from outlines_cont.errors import OptionError, UnsupportedModel
from outlines_cont.pipelines import SetupError
from tests.image_models import image_model, picture
from tests.images.test_chat import chat_of

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"enum": ["bill", "card", "note"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["kind", "count"],
    "additionalProperties": False,
}
SEEDS = range(6)


def png(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(seed)).save(file, format="PNG")
    return file.getvalue()


def extractor(**options: Any) -> pipelines.Extractor:
    return pipelines.Extractor(image_model("llava"), SCHEMA, **{"images": "scan", "max_tokens": 60, **options})


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("scans")
    paths = [folder / f"{seed}.png" for seed in SEEDS]
    for path, seed in zip(paths, SEEDS, strict=True):
        path.write_bytes(png(seed))
    return paths


@pytest.fixture(scope="module")
def wanted() -> list[Any]:
    """The plain loop: an image is seen, and its record is written."""
    model = image_model("llava")
    word = generate.json(model, SCHEMA)
    return [word(seen(model, seed), max_tokens=60) for seed in SEEDS]


def seen(model: Any, seed: int) -> Any:
    return model.see("<image>\nRecord: ", [picture(seed)])


def read(rows: list[dict[str, Any]]) -> list[Any]:
    assert [row["error"] for row in rows] == [None] * len(rows)
    return [{name: row[name] for name in ("kind", "count")} for row in rows]


def test_images_of_any_kind_have_the_records_of_the_plain_loop(files: list[Path], wanted: list[Any]) -> None:
    made = extractor(batch_size=3)
    assert len({json.dumps(one) for one in wanted}) > 1
    kinds: list[list[Any]] = [
        [*map(str, files)],
        files,
        [png(seed) for seed in SEEDS],
        [{"bytes": png(seed), "path": None} for seed in SEEDS],
        [{"bytes": None, "path": str(path)} for path in files],
        [[f"data:image/png;base64,{base64.b64encode(png(seed)).decode()}"] for seed in SEEDS],
        [Image.fromarray(picture(seed)) for seed in SEEDS],
    ]
    for values in kinds:
        assert read(made([{"scan": value} for value in values])) == wanted
    assert read(made(files)) == wanted  # a row may be the image alone
    assert read([made(kinds[2][1])]) == wanted[1:2]


def test_tables_of_images_keep_their_kind(files: list[Path], wanted: list[Any]) -> None:
    made, data = extractor(), [png(seed) for seed in SEEDS]
    frame = made(pandas.DataFrame({"scan": data}))
    assert frame[["kind", "count"]].to_dict("records") == wanted
    table = made(pyarrow.table({"scan": [{"bytes": one, "path": None} for one in data]}))
    assert table.select(["kind", "count"]).to_pylist() == wanted
    import datasets

    features = datasets.Features({"scan": datasets.Image()})
    found = made(datasets.Dataset.from_dict({"scan": [*map(str, files)]}, features=features))
    assert [{name: row[name] for name in ("kind", "count")} for row in found.select_columns(["kind", "count"])] == wanted


def test_a_row_without_a_picture_fails_alone(files: list[Path], tmp_path: Path, wanted: list[Any]) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(png(0)[:60])
    rows = [str(files[0]), str(tmp_path / "none.png"), broken, b"GIF89a", "", None, "https://example.com/a.png", {"no": 1}, str(files[1])]
    found = extractor(batch_size=4)([{"scan": row} for row in rows] + [{"other": 1}])
    reasons = [
        "cannot be read",
        "the file of an image",
        "the file of an image",
        "got none",
        "got none",
        "not fetched",
        "'bytes'",
        "the field",
    ]
    assert read([found[0], found[8]]) == wanted[:2]
    for row, reason in zip([*found[1:8], found[9]], reasons, strict=True):
        assert reason in row["error"]
        assert row["kind"] is None


def test_what_a_value_writes_as_a_place_is_text() -> None:
    made = extractor(prompt="{{ text }}: <image> of {{ text }}")
    row = {"scan": picture(1), "text": "a <image> </s>"}
    (group,) = made.prompt(row).rows
    assert len(group[0].images) == 1
    assert str(made.prompt(row)) == "a <image> </s>: <image> of a <image> </s>"
    plain = image_model("llava").see("b: <image> of b", [picture(1)])
    assert made.prompt(row | {"text": "b"}) == plain


def test_several_images_stand_at_their_places() -> None:
    made = extractor(images=["front", "back"], prompt="A: <image> B: <image>{{ text }}", allow_missing=["back", "text"])
    one = made.prompt({"front": [picture(1), picture(2)], "back": picture(3)})
    assert one == image_model("llava").see("A: <image><image> B: <image>", [picture(1), picture(2), picture(3)])
    assert str(made.prompt({"front": picture(1), "back": None})) == "A: <image> B: "
    assert made({"front": None})["error"].startswith("RowError: expected an image in the field 'front'")


def test_a_sampled_record_depends_on_its_image_and_not_on_other_rows() -> None:
    made = extractor(sampler=samplers.multinomial(temperature=3.0), samples=1)
    rows = [{"scan": picture(seed)} for seed in SEEDS]
    found = read(made(rows))
    assert read(made(rows[::-1])) == found[::-1]
    seeds = {tuple(span._seeds(made._generator)) for span in made._spans(rows, None)}
    assert len(seeds) == 2 * len(rows)


def test_a_chat_asks_about_the_image(files: list[Path]) -> None:
    made = extractor(chat=chat_of("llava", rng=0).system("Read."))
    chat = chat_of("llava", rng=0).system("Read.")
    told = f"Read the image, and answer with a JSON object that fits this schema: {made.schema.json_schema}"
    for seed, source in ((1, picture(1)), (2, str(files[2])), (3, {"bytes": png(3), "path": None})):
        reply = chat.user([picture(seed), told]).assistant(generate.json(image_model("llava"), SCHEMA), max_tokens=60)
        assert read([made({"scan": source})]) == [reply.value]
    typed = extractor(chat=Chat(image_model("llava"), template=chat.template), prompt="<image>{{ text }}")
    assert str(typed.prompt({"scan": picture(1), "text": "is <image> a place?"})).count("<image>") == 2


def test_a_function_of_a_row_writes_the_places() -> None:
    made = extractor(prompt=lambda row: f"{row['id']}: <image>\n")
    assert made.prompt({"id": 7, "scan": picture(1)}) == image_model("llava").see("7: <image>\n", [picture(1)])
    assert "for the image of each field" in extractor(prompt=lambda row: "none")({"scan": picture(1)})["error"]


def test_arguments_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(UnsupportedModel):
        pipelines.Extractor(models.tiny(), SCHEMA, images="scan")
    with pytest.raises(SetupError, match="`<image>` for the image of each field"):
        extractor(prompt="{{ text }}")
    with pytest.raises(SetupError, match="uses none"):
        extractor(images=None, prompt="<image>")
    for wrong in ([], "", ["a", "a"], 3):
        with pytest.raises(OptionError, match="images"):
            extractor(images=wrong)


def test_files_have_rows_and_a_report_thumbnails(files: list[Path], tmp_path: Path, wanted: list[Any]) -> None:
    out, report = tmp_path / "out.jsonl", tmp_path / "report.html"
    tally = pipelines.run([*files, tmp_path / "<none>.png"], extractor(), out, report=report)
    assert (tally.rows, tally.failed) == (7, 1)
    lines = [*map(json.loads, out.read_text().splitlines())]
    assert [line["record"] for line in lines[:6]] == wanted
    assert [line["scan"] for line in lines[:6]] == [*map(str, files)]
    page = report.read_text()
    assert page.count('src="data:image/jpeg;base64,') >= 6
    assert "<none>" not in page
    files[5].write_bytes(png(9))
    with pytest.raises(SetupError, match="line 6 of the input"):
        pipelines.run([*files, tmp_path / "<none>.png"], extractor(), out, report=report, resume=True)
    files[5].write_bytes(png(5))
    assert pipelines.run([*files, tmp_path / "<none>.png"], extractor(), out, report=report, resume=True).skipped == 7


def test_parquet_has_bytes_and_the_output_paths_alone(tmp_path: Path, wanted: list[Any]) -> None:
    source, out, report = tmp_path / "in.parquet", tmp_path / "out.jsonl", tmp_path / "report.html"
    scans = [{"bytes": png(seed), "path": f"{seed}.png"} for seed in SEEDS]
    pyarrow.parquet.write_table(pyarrow.table({"id": [*SEEDS], "scan": scans}), source)
    pipelines.run(source, extractor(), out, report=report)
    lines = [*map(json.loads, out.read_text().splitlines())]
    assert [(line["id"], line["scan"], line["record"]) for line in lines] == [(i, f"{i}.png", one) for i, one in enumerate(wanted)]
    assert out.stat().st_size < 4000
    assert 'src="data:image/jpeg;base64,' in report.read_text()
    assert len({line["_digest"][:12] for line in lines}) == len(lines)


def test_values_of_an_image_that_samples_do_not_agree_on_are_withheld() -> None:
    rows = [{"scan": picture(seed)} for seed in (1, 2)]
    found = extractor(confidence="agreement", abstain_below=1.0)(rows)
    plain = extractor()(rows)
    for row, other in zip(read(found), read(plain), strict=True):
        assert all(value is None or value == other[name] for name, value in row.items())
