"""Every example runs offline, as a script and, where it offers a class, through the command line."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlines_cont.cli import app

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_every_example_has_a_test() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "agents.py",
        "beam_by_hand.py",
        "chain.py",
        "checkpoint.py",
        "extract.py",
        "fork_tree.py",
        "guidance.py",
        "system_prompt.py",
    }


def test_the_chain_prints_three_results_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    kind, record, due, cost = run("chain.py", capsys)

    assert kind.split()[1] in ("order", "invoice", "shipment", "complaint", "quote")
    assert re.fullmatch(
        r"record: Order\(customer='.*', city='.*', item='.*', quantity=-?\d+, price=.*, currency='...'\)", record
    )
    assert re.fullmatch(r"due: +\d{4}-\d{2}-\d{2}", due)
    fed, reused, forced = map(int, re.findall(r"\d+", cost))
    assert fed > 0
    assert reused > 0
    assert forced > 0


def test_own_texts_become_own_records(capsys: pytest.CaptureFixture[str]) -> None:
    records = [json.loads(line) for line in run("extract.py", capsys)]

    assert len((EXAMPLES / "messages.txt").read_text().splitlines()) == len(records)
    for record in records:
        assert list(record) == ["name", "city", "item", "quantity", "due_date"]


def test_the_command_line_reads_the_same_records(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [json.loads(line) for line in run("extract.py", capsys)]
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", list(sys.path))

    result = CliRunner().invoke(app, ["extract", "messages.txt", "--schema", "extract:Order"])

    sys.modules.pop("extract", None)
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["record"] for line in result.stdout.splitlines()] == records


def test_the_tree_has_sixteen_leaves_in_seventy_two_forwards(capsys: pytest.CaptureFixture[str]) -> None:
    *tree, counts = run("fork_tree.py", capsys)

    assert counts == "16 leaves, 368 tokens sampled in 72 forwards"
    assert sum("── " in line for line in tree) == 31


def test_one_system_prompt_is_fed_once_for_32_conversations(capsys: pytest.CaptureFixture[str]) -> None:
    fed, *replies, forwards = run("system_prompt.py", capsys)

    assert int(fed.split()[0]) < 80
    assert len(replies) == 32
    for number, reply in enumerate(replies, 1):
        assert re.fullmatch(rf"We need {number} lamps. Kind: (order|invoice|complaint|quote)", reply)
    assert int(forwards.split()[0]) <= 6


def test_a_checkpoint_is_returned_to_without_feeding_a_token_twice(capsys: pytest.CaptureFixture[str]) -> None:
    *records, cost = run("checkpoint.py", capsys)

    assert len({tuple(json.loads(record)) for record in records}) == 1
    assert len(set(records)) > 1
    assert len(records) == 6
    assert cost.endswith("; 0 tokens fed twice")


def test_beam_search_by_hand_ranks_whole_texts(capsys: pytest.CaptureFixture[str]) -> None:
    ranked = [line.split() for line in run("beam_by_hand.py", capsys)]

    weights = [float(weight) for weight, _ in ranked]
    assert weights == sorted(weights, reverse=True)
    assert ranked[0][1] == "order"
    assert {text for _, text in ranked} <= {"order", "invoice", "complaint", "quote", "offer"}


def test_the_best_of_several_agents_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    *agents, kept = run("agents.py", capsys)

    weights = {line.split()[0]: float(line.split()[1]) for line in agents}
    assert len(weights) == 3
    assert weights[kept.split()[1]] == max(weights.values())


def test_guidance_moves_away_from_the_negative_message(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = [line.split(": ")[1] for line in run("guidance.py", capsys)]

    assert len(kinds) == 4
    assert kinds[0] != kinds[-1]
