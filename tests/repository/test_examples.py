"""Every example runs offline, as a script and, where it offers a class, through the command line."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outlines_cont.cli.__main__ import app

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with warnings.catch_warnings(action="error"):  # what the tests ignore, too
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_every_example_has_a_test() -> None:
    tested = set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text(encoding="utf-8")))
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


def test_the_chain_prints_three_results_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    kind, record, due, cost = run("chain.py", capsys)

    assert kind.split()[1] in ("order", "invoice", "shipment", "complaint", "quote")
    assert re.fullmatch(r"record: Order\(customer='.*', city='.*', item='.*', quantity=-?\d+, price=.*, currency='...'\)", record)
    assert re.fullmatch(r"due: +\d{4}-\d{2}-\d{2}", due)
    fed, reused, forced = map(int, re.findall(r"\d+", cost))
    assert fed > 0
    assert reused > 0
    assert forced > 0


def test_an_image_is_seen_once_and_again_where_its_keys_and_values_are_gone(capsys: pytest.CaptureFixture[str]) -> None:
    seen, asked, *answers, again = run("see.py", capsys)

    assert seen == "seen: 1 image, 180 tokens"
    assert [line.partition(": ")[0] for line in answers] == ["Shop", "Place", "Date", "Total"]
    assert answers[3] == "Total: 18.90"
    assert re.fullmatch(r"asked: 4 questions, 0 images, \d+ tokens", asked)
    assert again == "without keys and values: 1 image, 180 tokens"


def test_own_texts_become_own_records(capsys: pytest.CaptureFixture[str]) -> None:
    records = [json.loads(line) for line in run("extract.py", capsys)]

    assert len((EXAMPLES / "messages.txt").read_text().splitlines()) == len(records)
    for record in records:
        assert list(record) == ["name", "city", "item", "quantity", "due_date"]


def test_the_command_line_reads_the_same_records(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_tree_is_shown_on_a_page_whatever_a_model_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tree = runpy.run_path(str(EXAMPLES / "fork_tree.py"))
    texts = ["</svg><b>", "a\nb\t\x1b[2J\u202e]]>", "<!-- \ufffe \ud800"]
    root, *children = (tree["Node"](None, text=tree["shown"](text)) for text in texts)
    root.children = children
    assert tree["lines"](root)[1] == "    ├── a↵b��[2J�]]>"
    monkeypatch.setattr(sys, "argv", ["fork_tree.py", str(tmp_path / "tree.html")])
    tree["main"]()
    (data,) = re.findall(r'id="data">(.*?)</script>', (tmp_path / "tree.html").read_text(encoding="utf-8"))
    rows = json.loads(data)["rows"]
    assert len(rows) == 16
    assert sum(len(row["tokens"]) for row in rows) == len(rows[0]["tokens"]) + 368 - 72


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


def test_five_lines_are_numbered_and_end_at_their_line_break(capsys: pytest.CaptureFixture[str]) -> None:
    *lines, cost = run("list_of_five.py", capsys)

    assert len(lines) == 5
    for number, line in enumerate(lines, 1):
        assert re.fullmatch(rf"{number}\. [a-z]{{3,8}}( [a-z]{{3,8}})?", line)
    assert re.fullmatch(r"\d+ tokens sampled, \d+ given", cost)


def test_one_of_the_options_is_chosen_and_python_goes_on_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = [line.split()[:2] for line in run("choose.py", capsys)]

    assert len(chosen) == 3
    for kind, answer in chosen:
        assert kind in {"order", "orders", "invoice", "complaint", "quote"}
        assert answer == ("yes" if kind.startswith("order") else "no")


def test_a_gap_is_filled_with_what_the_text_behind_it_follows_best(capsys: pytest.CaptureFixture[str]) -> None:
    *ranked, before, text = run("infill.py", capsys)

    scores = [float(line.split()[0]) for line in ranked]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) > 1
    assert ranked[0].split()[1] == "complaint"
    assert before.startswith("Message: ")
    assert text.startswith("Kind: complaint, as the chairs are broken")


def test_the_first_fork_joins_what_the_others_have_written(capsys: pytest.CaptureFixture[str]) -> None:
    joined, kind, due, log, cost = run("fork_and_join.py", capsys)

    assert joined == f"0 An {kind.split()[-1]}, due on {due.split()[-1]}."
    assert log == f"joined {kind.split()[-1]} and {due.split()[-1]}"
    forwards, sampled = map(int, re.findall(r"\d+", cost))
    assert forwards <= sampled + 2


def test_forks_of_forks_all_report(capsys: pytest.CaptureFixture[str]) -> None:
    *leaves, last = run("fork_many.py", capsys)

    assert [leaf.split()[0] for leaf in leaves] == [f"{i:03b}" for i in range(8)]
    assert last.startswith("8 forks; Kind: ")
    assert last.endswith("(of 8)")


def test_a_draft_is_rewritten_at_the_price_of_the_new_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    draft, note, kind, cost = run("rewrite.py", capsys)

    assert draft.startswith("draft: Record: {")
    assert "Record" not in note + kind
    assert cost.endswith(", 0 fed twice")


def test_quotations_occur_in_the_message(capsys: pytest.CaptureFixture[str]) -> None:
    quotes = run("quote.py", capsys)
    source = runpy.run_path(str(EXAMPLES / "quote.py"))["MESSAGE"]

    assert len(quotes) == 4
    for line in quotes:
        assert line.removeprefix('She wrote: "').removesuffix('"') in source


def test_a_pattern_a_grammar_and_a_schema_in_one_text(capsys: pytest.CaptureFixture[str]) -> None:
    due, total, year, record, last = run("pattern_and_grammar.py", capsys)

    assert re.fullmatch(r"Due: 20\d\d-\d\d-\d\d", due)
    assert re.fullmatch(r"Sum: [-+*()0-9]+", total)
    assert year == f"In the year {due[5:9]}"
    values = json.loads(record.removeprefix("Record: "))
    assert last == f"Of these, {values['quantity']} go to {values['city']}."


def test_a_controller_takes_tokens_back_and_writes_them_in_capitals(capsys: pytest.CaptureFixture[str]) -> None:
    text, retracted = run("uppercase.py", capsys)

    assert any(map(str.isupper, text))
    assert int(retracted.split()[0]) > 0


def test_phrases_of_a_list_are_banned_in_a_stream(capsys: pytest.CaptureFixture[str]) -> None:
    without, text, retries = run("slop.py", capsys)

    assert "EUR" in without
    assert text.startswith("with:    {")
    assert "eur" not in text.casefold()
    assert not re.search(r"city.{1,4}P\w{1,8}", text)
    assert int(retries.split()[0]) > 0


def test_the_end_of_a_record_is_replaced_twice(capsys: pytest.CaptureFixture[str]) -> None:
    text, counts = run("think_longer.py", capsys)

    assert text.count(',"note":"') == 2
    assert text.endswith("}")
    assert counts.startswith("2 replaced, ")


def test_the_most_probable_tokens_are_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    plain, creative = run("creative.py", capsys)

    assert plain.endswith("(0 retries)")
    assert plain.split()[1] != creative.split()[1]
    assert int(re.findall(r"\((\d+) retries", creative)[0]) > 0


def test_a_stream_ends_before_a_stop_text_and_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    text, end = run("stream.py", capsys)

    assert text == '{"customer":"Marta Keller","city":"Porto",'
    assert end == "ended by stop: '\"item\"'"


def test_tokens_come_with_their_probabilities_and_those_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    *tokens, logits = run("stream_events.py", capsys)

    assert len(tokens) == 6
    for line in tokens:
        own, of = line.split("  of ")
        token, probability = own.rsplit(" ", 1)
        others = dict(other.rsplit(" ", 1) for other in of.split(", ") if other.count("'") == 2)
        assert others.get(token, probability) == probability
        assert len(re.findall(r" [01]\.\d\d", of)) == 3
    assert logits.startswith("logits: (1283,), next ")


def test_a_record_grows_field_by_field(capsys: pytest.CaptureFixture[str]) -> None:
    *grown, last = run("stream_json.py", capsys)

    fields = [re.findall(r"(\w+)=", line) for line in grown]
    assert fields[:3] == [["name"], ["name", "city"], ["name", "city", "item"]]
    assert all(earlier == later[: len(earlier)] for earlier, later in itertools.pairwise(fields))
    assert len(fields[-1]) == 5
    assert re.fullmatch(r"due on \d\d\.\d\d\.\d{4}", last)


def test_jobs_stream_side_by_side_and_a_cancelled_one_lets_its_row_go(capsys: pytest.CaptureFixture[str]) -> None:
    *jobs, cost = run("stream_jobs.py", capsys)

    assert {line.split(":")[0] for line in jobs} == {"lamps", "chairs", "crates"}
    assert [line for line in jobs if line.endswith("(cancelled)")] == [jobs[0]]
    sampled, forwards, left = map(int, re.findall(r"\d+", cost))
    assert forwards < sampled * 2 / 3
    assert left == 0


def test_logits_of_another_engine_become_the_text_of_our_own_loop(capsys: pytest.CaptureFixture[str]) -> None:
    text, end = run("stream_logits.py", capsys)

    assert text.startswith('{"')
    assert re.fullmatch(r"ended by '\"price\"' after \d+ tokens", end)


def test_generate_of_transformers_writes_records(capsys: pytest.CaptureFixture[str]) -> None:
    *records, begun, first, last = run("transformers_generate.py", capsys)

    assert [line.split(":")[0] for line in records] == ["greedy", "greedy", "beams", "beams"]
    assert all(re.search(r"customer='.+' quantity=-?\d+ currency='...'$", line) for line in records)
    assert begun == "so far: "
    assert last.startswith(first)


def test_a_template_is_run_for_three_rows(capsys: pytest.CaptureFixture[str]) -> None:
    *rows, cost = run("template.py", capsys)

    assert len(rows) == 3
    for row in rows:
        assert re.fullmatch(r"(order (\d+)|(invoice|complaint) -) \{'customer': .*, 'item': .*\}", row)
    assert re.fullmatch(r"3 programs in \d+ forwards, \d+ tokens fed", cost)


def test_many_messages_become_columns_and_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, failed, tally, has_page = run("pipeline.py", capsys)
    assert all(re.fullmatch(r".*: .*, due \d{4}-\d\d-\d\d; \d+% of the samples agree on the item", line) for line in (first, second))
    assert failed == "RowError: expected a text in the field 'text', got a blank one"
    assert tally == "3 rows, 0 failed, tokens were reused"
    assert has_page == "True"
