"""The live page in a real Chromium: a chain is written, a token is clicked and another chosen, undone, saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlines_cont import models
from tests.inspector.conftest import until
from tests.inspector.test_page import HOSTILE, PROMPT, SCHEMA
from tests.serve.running import Running

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with Running(models.tiny()) as running:
        yield running


def written(tab: Any, server: Running, prompt: str = PROMPT) -> str:
    """Open the page, and write an order after a prompt; what was written."""
    tab.goto(f"{server.url}/")
    tab.locator("#prompt").fill(prompt)
    tab.locator("#steps select").select_option("json")
    tab.locator("#steps .source").fill(json.dumps(SCHEMA))
    tab.locator("#add").click()
    tab.locator("#steps select").nth(1).select_option("write")
    tab.locator("#steps .source").nth(1).fill("\nDone.")
    tab.locator("#run").click()
    until(tab, "document.querySelector('#facts').textContent.includes('not fed again')")
    return text_of(tab)


def text_of(tab: Any) -> str:
    text: str = tab.evaluate("document.querySelector('#text').textContent.replaceAll('↵', '').replaceAll('·', '')")
    return text


def test_a_token_is_clicked_and_another_chosen(tab: Any, server: Running) -> None:
    first = written(tab, server)
    assert first.startswith(PROMPT)
    assert first.endswith("\nDone.")
    assert json.loads(first[len(PROMPT) : -6])["item"] == "lamps"
    index = tab.evaluate("[...document.querySelectorAll('#text .t')].findLastIndex(e => e.textContent === 'amp')")
    tab.locator("#text .t").nth(index).click()
    token = tab.locator("#details .choice").nth(1)
    chosen = tab.locator("#details tr").nth(2).locator("code").inner_text()
    token.click()
    until(tab, f"document.querySelector('#facts').textContent.includes('{index - 1} of')")
    other = text_of(tab)
    assert other != first
    assert tab.locator("#text .t").nth(index).text_content() == json.loads(chosen)
    assert json.loads(other[len(PROMPT) : -6])["item"].startswith("l" + json.loads(chosen))
    leaves = tab.locator("[role=treeitem]:not([aria-expanded])")
    assert leaves.count() == 2
    leaves.first.locator(".node").click()
    assert text_of(tab) == first
    leaves.last.locator(".node").click()
    tab.locator("#undo").click()
    assert text_of(tab) == first
    assert tab.locator("[role=treeitem]").count() == 1
    tab.locator("#redo").click()
    assert text_of(tab) == other
    assert leaves.count() == 2
    tab.locator("#redo").click()  # there is nothing more
    assert leaves.count() == 2
    tab.locator("#undo").click()
    tab.locator("#undo").click()
    assert tab.locator("#text .t").count() == 0
    tab.locator("#redo").click()
    assert text_of(tab) == first
    tab.locator("#run").click()
    until(tab, "document.querySelectorAll('[role=treeitem]:not([aria-expanded])').length === 2")
    until(tab, "document.querySelector('#facts').textContent.includes('not fed again')")
    tab.locator("#redo").click()  # another run has taken its place
    assert leaves.count() == 2


def test_stops_and_bans_of_a_step_are_shown_by_what_they_took_back(tab: Any, server: Running) -> None:
    tab.goto(f"{server.url}/")
    hello = "Message: Hello"
    tab.locator("#prompt").fill(hello)
    tab.locator("#steps input").first.fill("30")
    tab.locator("#steps input").first.blur()
    tab.locator("#run").click()
    until(tab, "document.querySelector('#facts').textContent.includes('not fed again')")
    word = text_of(tab)[len(hello) :].split()[2]
    tab.locator("#steps summary").click()
    tab.get_by_label("Banned texts of step 1").fill(word)
    tab.get_by_label("Stop texts of step 1").fill("zz\n.")
    tab.locator("#run").click()
    until(tab, "document.querySelectorAll('[role=treeitem]:not([aria-expanded])').length === 2")
    until(tab, "document.querySelector('#facts').textContent.includes('not fed again')")
    assert word not in text_of(tab)[len(hello) :]
    assert "." not in text_of(tab)[len(hello) :]
    tab.locator("#text .k-r").first.click()
    told = tab.locator("#details").inner_text()
    assert "retried: drawn after others were refused here" in told
    assert "refused here" in told


@pytest.mark.parametrize(("motion", "animation"), [("reduce", "none"), ("no-preference", "fresh")])
def test_new_tokens_fade_in_only_where_motion_is_wanted(tab: Any, server: Running, motion: Any, animation: str) -> None:
    tab.emulate_media(reduced_motion=motion)
    tab.goto(f"{server.url}/")
    tab.locator("#prompt").fill("Due: ")
    tab.locator("#steps input").first.fill("5")
    tab.locator("#steps input").first.blur()
    seen = "[...document.querySelectorAll('#text .fresh')].map(e => getComputedStyle(e).animationName)"
    tab.evaluate(
        "new MutationObserver(() => { const found = "
        + seen
        + "; if (found.length) window.seen = found; }).observe(document.querySelector('#text'), {childList: true})"
    )
    tab.locator("#run").click()
    until(tab, "document.querySelector('#facts').textContent.includes('not fed again')")
    assert set(tab.evaluate("window.seen")) == {animation}


def test_a_choice_is_made_by_keys_alone(tab: Any, server: Running) -> None:
    first = written(tab, server)
    index = tab.evaluate("[...document.querySelectorAll('#text .t')].findLastIndex(e => e.textContent === 'amp')")
    tab.locator("#text").focus()
    tab.keyboard.press("Home")
    for _ in range(index):
        tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.id") == "again"
    tab.keyboard.press("Tab")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "choice"
    tab.keyboard.press("Enter")
    until(tab, "document.querySelectorAll('[role=treeitem]:not([aria-expanded])').length === 2")
    until(tab, "document.querySelector('#status').textContent.includes('not fed again')")
    until(tab, "document.activeElement.id === 'text'")  # a moment after what is shown
    assert text_of(tab) != first


def test_a_text_is_drawn_again_from_a_token(tab: Any, server: Running) -> None:
    tab.goto(f"{server.url}/")
    tab.locator("#prompt").fill("Code: ")
    tab.locator("#steps select").select_option("regex")
    tab.locator("#steps .source").fill("[A-Z]{30}")
    tab.locator("#steps input").nth(1).fill("2")
    tab.locator("#steps input").nth(1).blur()
    tab.locator("#run").click()
    until(tab, "document.querySelector('#facts').textContent.includes('not fed again')")
    first = text_of(tab)
    tab.locator("#text .t").nth(8).click()
    tab.locator("#again").click()
    until(tab, "document.querySelector('#facts').textContent.includes('8 of')")
    kept = tab.evaluate("[...document.querySelectorAll('#text .t')].slice(0, 8).map(e => e.textContent).join('')")
    other = text_of(tab)
    assert other.startswith(kept)
    assert first.startswith(kept)
    assert other != first
    assert len(other) == len(first) == len("Code: ") + 30


def test_a_session_is_saved_and_loaded(tab: Any, server: Running, tmp_path: Path) -> None:
    first = written(tab, server)
    tab.locator("#bookmark").click()
    assert "★" in tab.locator("#tree").inner_text()
    tab.locator("#text .t").nth(30).click()
    tab.locator("#details .choice").nth(1).click()
    until(tab, "document.querySelector('#facts').textContent.includes('29 of')")
    second = text_of(tab)
    with tab.expect_download() as saved:
        tab.locator("#save").click()
    path = tmp_path / "session.json"
    saved.value.save_as(path)
    session = json.loads(path.read_text(encoding="utf-8"))
    assert [row["shared"] for row in session["rows"]] == [[0, 0], [0, 30]]
    tab.goto(f"{server.url}/")
    tab.locator("#load").set_input_files(path)
    tab.wait_for_selector("#text .t")
    assert text_of(tab) == second
    assert tab.locator("#prompt").input_value() == PROMPT
    assert tab.locator("#steps .step").count() == 2
    tab.locator("[role=treeitem]:not([aria-expanded]) > .node").first.click()
    assert text_of(tab) == first
    assert "★" in tab.locator("#tree").inner_text()
    (tmp_path / "odd.json").write_text('{"format": "<img src=x onerror=alert(1)>"}', encoding="utf-8")
    tab.locator("#load").set_input_files(tmp_path / "odd.json")
    until(tab, "document.querySelector('#error').textContent.includes('cannot be read')")
    assert text_of(tab) == first


def test_errors_are_told_and_hostile_texts_do_nothing(tab: Any, server: Running) -> None:
    tab.goto(f"{server.url}/")
    tab.locator("#prompt").fill("x")
    tab.locator("#steps select").select_option("regex")
    tab.locator("#steps .source").fill("<img src=x onerror=alert(1)>(")
    with tab.expect_response("**/inspect/run"):
        tab.locator("#run").click()
    until(tab, "document.querySelector('#error').textContent.includes('<img src=x')")
    tab.evaluate("document.querySelector('#error').textContent = ''")
    assert tab.locator("[role=treeitem]").count() == 0
    text = HOSTILE[0] + HOSTILE[2]
    assert written(tab, server, text).startswith(text)
    assert tab.locator("img").count() == 0
    assert tab.evaluate("document.scripts.length") == 2


def test_a_run_is_stopped(tab: Any, server: Running) -> None:
    tab.goto(f"{server.url}/")
    tab.locator("#prompt").fill("Due: ")
    tab.locator("#steps select").select_option("regex")
    tab.locator("#steps .source").fill("[0-9]{1900}")
    tab.locator("#steps input").first.fill("1900")
    tab.locator("#steps input").first.blur()
    tab.locator("#run").click()
    until(tab, "document.querySelectorAll('#text .t').length > 20")
    tab.locator("#stop").click()
    server.wait_until(lambda: server.num_running == 0)
    assert tab.locator("#text .t").count() > 20
    assert tab.locator("#error").inner_text() == ""
