"""`outlines-cont batch` as a user runs it: replies of all endpoints, errors that hurt no other line, resuming, a server as the model."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from outlines_cont import continuous, generate, models
from outlines_cont.batches.batch_run import BatchRun
from outlines_cont.batches.doors import application_door, server_door
from outlines_cont.cli.__main__ import app
from outlines_cont.cli.model_names import models_by_name
from outlines_cont.errors import OutlinesContError
from outlines_cont.pipelines import SetupError
from outlines_cont.serve.app import make_app
from tests.examples import first
from tests.saved_model import save_model
from tests.serve.running import Running

ASKED: Any = {"temperature": 0, "max_tokens": 8, "messages": [{"role": "user", "content": "Rain?"}]}
ROWS: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {"model": "tiny", **ASKED}),
    ("/v1/completions", {"model": "tiny", "prompt": "Message: Hello", "max_tokens": 4, "temperature": 0}),
    ("/v1/responses", {"model": "tiny", "input": "Rain?", "max_output_tokens": 4, "temperature": 0}),
    ("/v1/messages", {"model": "tiny", **ASKED}),
    ("/v1/chat/completions", {"model": "tiny", **ASKED, "structured_outputs": {"choice": ["yes", "no"]}}),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def line(name: str, url: str, body: Any, **more: Any) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body} | more)


def batch(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["batch", "in.jsonl", "out.jsonl", "--no-progress", *arguments])


def records(name: str) -> dict[str, Any]:
    return {record["custom_id"]: record for record in map(json.loads, Path(name).read_text(encoding="utf-8").splitlines())}


def reply_text(body: Any) -> str:
    """The text of a reply of any endpoint."""
    if "choices" in body:
        (choice,) = body["choices"]
        return str(choice.get("text") or choice["message"]["content"])
    blocks = body["content"] if "content" in body else body["output"][0]["content"]
    return str(blocks[0]["text"])


def test_requests_of_all_endpoints_are_answered(folder: Path) -> None:
    lines = [line(f"row-{i}", url, body) for i, (url, body) in enumerate(ROWS)]
    lines.append(line("without a model", "/v1/chat/completions", ASKED))
    (folder / "in.jsonl").write_text("\n\n".join(lines) + "\n")
    done = batch()
    assert done.exit_code == 0, done.stderr
    assert "6 rows, 0 failed" in done.stderr
    found = records("out.jsonl")
    assert not (folder / "out.errors.jsonl").exists()
    assert {*found} == {*(f"row-{i}" for i in range(5)), "without a model"}
    for record in found.values():
        assert record.keys() == {"id", "custom_id", "response", "error"}
        assert (record["response"]["status_code"], record["error"]) == (200, None)
        assert record["id"].startswith("batch_req_")
        assert record["response"]["request_id"].startswith("req_")
    texts = {name: reply_text(record["response"]["body"]) for name, record in found.items()}
    assert texts["row-0"] == texts["row-3"] == texts["without a model"]
    assert texts["row-4"] in ("yes", "no")


BAD: list[tuple[str, str | None, str]] = [
    ("nothing", None, "invalid_json_line"),
    ("[" * 100_000, None, "invalid_json_line"),
    ("[1]", None, "invalid_request"),
    (line("a", "/v1/chat/completions", ASKED, more=1), "a", "invalid_request"),
    (json.dumps({"custom_id": "b"}), "b", "invalid_request"),
    (json.dumps({"custom_id": 3, "method": "POST", "url": "/v1/messages", "body": {}}), None, "invalid_request"),
    (line("c", "/v1/chat/completion", ASKED), "c", "invalid_url"),
    (line("d", "/v1/chat/completions", ASKED, method="GET"), "d", "invalid_method"),
    (line("e", "/v1/chat/completions", ASKED | {"stream": True}), "e", "invalid_request"),
    (line("good", "/v1/chat/completions", ASKED), "good", "duplicate_custom_id"),
    (line("f", "/v1/chat/completions", ASKED | {"model": "other"}), "f", "404"),
    (line("g", "/v1/chat/completions", ASKED | {"foo": 1}), "g", "400"),
    (line("h", "/v1/messages", {"max_tokens": 1}), "h", "400"),
]


def test_a_bad_line_has_an_error_and_hurts_no_other(folder: Path) -> None:
    lines = [line("good", "/v1/chat/completions", ASKED), *(text for text, _, _ in BAD), line("last", "/v1/chat/completions", ASKED)]
    (folder / "in.jsonl").write_text("\n".join(lines))
    done = batch("--errors", "wrong.jsonl")
    assert done.exit_code == 1
    assert f"{len(lines)} rows, {len(BAD)} failed" in done.stderr
    assert "errors: wrong.jsonl" in done.stderr
    good = records("out.jsonl")
    assert {*good} == {"good", "last"}
    found = [json.loads(text) for text in Path("wrong.jsonl").read_text().splitlines()]
    codes = [
        (record["custom_id"], record["error"]["code"] if record["error"] else str(record["response"]["status_code"])) for record in found
    ]
    assert sorted(codes, key=str) == sorted(((name, code) for _, name, code in BAD), key=str)
    assert all((record["response"] is None) == (record["error"] is not None) for record in found)
    (told,) = [record["error"]["message"] for record in found if record["custom_id"] == "c"]
    assert "Did you mean '/v1/chat/completions'?" in told
    (sent,) = [record["response"]["body"] for record in found if record["custom_id"] == "h"]
    assert sent["error"]["type"] == "invalid_request_error"


# -- resuming, with an application that answers at once --------------------------------------------------------------


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An application that answers with its request; 400 for the body `{"bad": true}`."""
    body = (await receive())["body"]
    await asyncio.sleep(random.Random(body).random() / 500)
    status = 400 if json.loads(body).get("bad") else 200
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


def run_of(folder: Path, **more: Any) -> BatchRun:
    return BatchRun(folder / "in.jsonl", folder / "out.jsonl", folder / "out.errors.jsonl", **more)


def written(folder: Path) -> list[tuple[str, int, Any]]:
    """The records of both files, sorted."""
    paths = [path for path in (folder / "out.jsonl", folder / "out.errors.jsonl") if path.exists()]
    found = [json.loads(text) for path in paths for text in path.read_text(encoding="utf-8").splitlines()]
    return sorted((one["custom_id"], one["response"]["status_code"], one["response"]["body"]) for one in found)


@pytest.mark.parametrize("seed", first(5, range(10)))
def test_a_run_that_was_interrupted_goes_on_where_it_was(folder: Path, seed: int) -> None:
    draw = random.Random(seed)
    bodies = [{"n": i, **({"bad": True} if draw.random() < 0.3 else {})} for i in range(30)]
    (folder / "in.jsonl").write_text("".join(line(f"é{i}", "/v1/messages", body) + "\n" for i, body in enumerate(bodies)))
    whole = sorted((f"é{i}", 400 if "bad" in body else 200, body) for i, body in enumerate(bodies))
    sent: list[Any] = []
    limit = draw.randint(0, 40)

    async def door(path: str, body: Any) -> tuple[int, bytes]:
        if len(sent) == limit:
            raise KeyboardInterrupt
        sent.append(body["n"])
        return await application_door(echo)(path, body)

    try:
        run_of(folder, at_once=draw.randint(1, 8)).run(door, lambda tally: None)
    except KeyboardInterrupt:
        before = written(folder)
        assert {name for name, _, _ in before} <= {name for name, _, _ in whole}
        if draw.random() < 0.5:  # a power failure in a line
            with (folder / "out.jsonl").open("ab") as file:
                file.write(b'{"id": "batch_req')
        limit = -1
        sent.clear()
        again = run_of(folder, resume=True)
        assert (again.tally.skipped, again.tally.failed) == (len(before), sum(status == 400 for _, status, _ in before))
        again.run(door, lambda tally: None)
        assert len(sent) == len(whole) - len(before)
        assert again.tally.failed == sum(status == 400 for _, status, _ in whole)
    assert written(folder) == whole
    assert run_of(folder, resume=True).tally.skipped == len(whole)


def test_files_that_exist_are_not_touched_unless_it_is_said(folder: Path) -> None:
    (folder / "in.jsonl").write_text(line("a", "/v1/messages", {"bad": True}) + "\n" + line("b", "/v1/messages", {}))
    door = application_door(echo)
    run_of(folder).run(door, lambda tally: None)
    for name in ("out.jsonl", "out.errors.jsonl"):
        text = (folder / name).read_text()
        with pytest.raises(OutlinesContError, match="exists"):
            run_of(folder)
        assert (folder / name).read_text() == text
        (folder / name).unlink()
        run_of(folder, resume=True).run(door, lambda tally: None)  # what was deleted is asked for again
        assert len((folder / name).read_text().splitlines()) == 1
    with pytest.raises(OutlinesContError, match="got both"):
        run_of(folder, resume=True, overwrite=True)
    with pytest.raises(OutlinesContError, match="records of this input, model and options"):
        run_of(folder, resume=True, settings="others")
    (folder / "in.jsonl").write_text(line("a", "/v1/messages", {"bad": True}) + "\n" + line("b", "/v1/messages", {"n": 1}))
    with pytest.raises(OutlinesContError, match="line 1 of .*out.jsonl"):
        run_of(folder, resume=True)
    run_of(folder, overwrite=True).run(door, lambda tally: None)
    (folder / "in.jsonl").write_text(line("b", "/v1/messages", {"n": 2}))
    run_of(folder, overwrite=True).run(door, lambda tally: None)
    assert written(folder) == [("b", 200, {"n": 2})]


def test_what_another_run_has_written_meanwhile_is_kept(folder: Path) -> None:
    (folder / "in.jsonl").write_text(line("a", "/v1/messages", {}) + "\n" + line("b", "/v1/messages", {}))
    door = application_door(echo)
    (folder / "out.jsonl").touch()
    late, first = run_of(folder, resume=True), run_of(folder, resume=True)
    first.run(door, lambda tally: None)
    with pytest.raises(OutlinesContError, match="has changed since"):
        late.run(door, lambda tally: None)
    assert [name for name, _, _ in written(folder)] == ["a", "b"]


def test_many_requests_run_together_and_no_more_than_are_allowed(folder: Path) -> None:
    (folder / "in.jsonl").write_text("".join(line(str(i), "/v1/messages", {}) + "\n" for i in range(40)))
    running = most = 0

    async def door(path: str, body: Any) -> tuple[int, bytes]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return 200, b"{}"

    run_of(folder, at_once=7).run(door, lambda tally: None)
    assert most == 7


def test_a_reply_that_is_no_json_is_an_error(folder: Path) -> None:
    (folder / "in.jsonl").write_text(line("a", "/v1/messages", {}))

    async def door(path: str, body: Any) -> tuple[int, bytes]:
        return 502, b"<html>"

    run = run_of(folder)
    run.run(door, lambda tally: None)
    assert run.tally.failed == 1
    (record,) = map(json.loads, (folder / "out.errors.jsonl").read_text().splitlines())
    assert record["error"]["code"] == "invalid_reply"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "a=bundled", "--model", "a=bundled"), "expected a name of its own for each model, got 'a' for two"),
        (("--model", "a=bundled", "--model", "b=./nowhere"), "expected an existing folder for the model 'b', got './nowhere'"),
        (("--errors", "out.jsonl"), "expected two files"),
        (("--errors", "in.jsonl"), "other than the input"),
        (("--errors", "nowhere/out.jsonl"), "a folder that exists"),
        (("--url", "127.0.0.1"), "as --url"),
        (("--url", "http://127.0.0.1:9"), "cannot be reached"),
        (("--resume", "--overwrite"), "got both"),
    ],
)
def test_what_cannot_run_is_said_in_one_line(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    (folder / "in.jsonl").write_text(line("a", "/v1/messages", {}))
    done = batch(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_input_that_cannot_be_read_is_said_in_one_line(folder: Path) -> None:
    done = batch()
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "'in.jsonl'" in done.stderr


def test_lines_for_several_models(folder: Path) -> None:
    save_model(folder / "small")
    asked: Any = {"prompt": "Message: Hello", "max_tokens": 4, "temperature": 0}
    given = [asked, asked | {"model": "tiny"}, asked | {"model": "s"}, asked | {"model": "other"}]
    (folder / "in.jsonl").write_text("".join(line(str(i), "/v1/completions", body) + "\n" for i, body in enumerate(given)))
    done = batch("--model", "tiny=bundled", "--model", "s=./small")
    assert done.exit_code == 1
    found = {name: one["response"]["body"] for name, one in records("out.jsonl").items()}
    assert {name: one["model"] for name, one in found.items()} == {"0": "tiny", "1": "tiny", "2": "s"}
    assert reply_text(found["0"]) == reply_text(found["1"])
    for name, model in (("0", models.tiny()), ("2", models.transformers("small"))):
        assert "Message: Hello" + reply_text(found[name]) == str(continuous(generate.text(model))("Message: Hello", max_tokens=4))
    (failed,) = records("out.errors.jsonl").values()
    assert "expected one of the models 'tiny', 's', got 'other'" in failed["response"]["body"]["error"]["message"]
    assert batch("--model", "tiny=bundled", "--model", "s=./small", "--resume").exit_code == 1  # nothing is left to be asked
    assert "--overwrite" in batch("--model", "tiny=bundled", "--resume").stderr  # it was written by other models


def test_models_have_names(tmp_path: Path) -> None:
    folder = tmp_path / "a=b"
    folder.mkdir()
    assert models_by_name([None]) == {"tiny": None}
    assert models_by_name([None], "x") == {"x": None}
    assert models_by_name(["org/model", "b=bundled", str(folder), f"c={folder}"], "x") == {
        "x": "org/model",
        "b": None,
        "a=b": str(folder),
        "c": str(folder),
    }
    for given, name in ((["=a"], None), (["a="], None), ([""], None), (["a=x"], "b"), (["x", "x"], None), ([None, "tiny=x"], None)):
        with pytest.raises(SetupError):
            models_by_name(given, name)


# -- a server ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def busy() -> Iterator[Running]:
    """A server that answers three requests at the same time."""
    with Running(models.tiny(), key="secret", max_requests=3) as running:
        yield running


def test_a_server_answers_as_the_application_does(busy: Running, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "in.jsonl").write_text("".join(line(str(i), url, body) + "\n" for i, (url, body) in enumerate(ROWS)))
    monkeypatch.setenv("OUTLINES_CONT_API_KEY", "secret")
    done = batch("--url", f"{busy.url}/v1")
    assert done.exit_code == 0, done.stderr
    run = BatchRun(folder / "in.jsonl", folder / "own.jsonl", folder / "own.errors.jsonl")
    run.run(application_door(make_app(busy.model, "tiny")), lambda tally: None)
    texts = [{name: reply_text(one["response"]["body"]) for name, one in records(file).items()} for file in ("out.jsonl", "own.jsonl")]
    assert texts[0] == texts[1]
    assert len(texts[0]) == len(ROWS)


def test_an_error_of_a_server_is_that_of_the_request(busy: Running) -> None:
    status, data = asyncio.run(server_door(busy.url, "other")("/v1/messages", {}))
    assert status == 401
    assert json.loads(data)["error"]["type"] == "authentication_error"
