"""The layout of the pages in a real Chromium, on a phone, a laptop and a large screen: nothing is cut, and what is needed is in sight."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlines_cont import continuous, generate, models, samplers
from outlines_cont.pipelines import Report, write_page
from tests.inspector.conftest import until
from tests.inspector.test_page import PROMPT, SCHEMA
from tests.serve.running import Running

pytestmark = pytest.mark.browser

SCREENS = [(390, 844), (1280, 720), (1920, 1080)]
DONE = "document.querySelector('#facts').textContent.includes('not fed again')"
# Elements with letters that do not fit, or that reach over the edge of the screen; a select shows what it can.
CUT = """[...document.querySelectorAll('h1, h2, label, button, legend, .node, .node small, dt, dd, th, td, #facts, #error, #hint li')]
    .filter(e => e.checkVisibility())
    .filter(e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline'
        || e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
    .map(e => e.tagName + ' ' + e.textContent.slice(0, 40))"""
BROKEN = """[...document.querySelectorAll('label')].filter(e => e.checkVisibility() && e.querySelector('input[type=radio]'))
    .filter(e => e.getClientRects().length !== 1 || e.getBoundingClientRect().height > 40).map(e => e.textContent)"""
BESIDE = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with Running(models.tiny()) as running:
        yield running


def below_the_fold(tab: Any, selector: str) -> list[str]:
    found: list[str] = tab.evaluate(
        "s => [...document.querySelectorAll(s)].filter(e => { const box = e.getBoundingClientRect();"
        " return !box.height || box.bottom > innerHeight || box.top < 0; }).map(e => e.textContent)",
        selector,
    )
    return found


def assert_whole(tab: Any) -> None:
    """Nothing is cut, a radio button stands beside its label, and the page does not scroll sideways."""
    assert tab.evaluate(CUT) == []
    assert tab.evaluate(BROKEN) == []
    assert tab.evaluate(BESIDE) <= 0


def write_order(tab: Any) -> None:
    """Write an order, and a second branch of it, by another token."""
    tab.locator("#prompt").fill(PROMPT)
    tab.locator("#steps select").select_option("json")
    tab.locator("#steps .source").fill(json.dumps(SCHEMA))
    tab.locator("#run").click()
    until(tab, DONE)
    # Both by the page's own events: a pointer on its way may pass over other tokens, which shows theirs.
    tab.evaluate("[...document.querySelectorAll('#text .t')].findLast(e => e.textContent === 'amp').click()")
    tab.evaluate("document.querySelectorAll('#details .choice')[1].click()")
    until(tab, "document.querySelectorAll('[role=treeitem]:not([aria-expanded])').length === 2")
    until(tab, DONE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SCREENS)
def test_the_live_page_shows_all_of_it(tab: Any, server: Running, width: int, height: int, scheme: Any) -> None:
    tab.set_viewport_size({"width": width, "height": height})
    tab.emulate_media(color_scheme=scheme)
    tab.goto(f"{server.url}/")
    assert_whole(tab)
    assert below_the_fold(tab, "#actions button, #prompt, #example") == []
    write_order(tab)
    assert_whole(tab)
    assert below_the_fold(tab, "#actions button") == []
    if width > 700:
        assert below_the_fold(tab, "#tree .node, #modes label, #text, #prompt") == []


def test_an_empty_page_says_what_to_do_and_shows_an_example(tab: Any, server: Running) -> None:
    tab.goto(f"{server.url}/")
    assert "Write a prompt" in tab.locator("#hint").inner_text()
    tab.locator("#example").click()
    until(tab, DONE)
    assert not tab.locator("#hint").is_visible()
    assert tab.locator("#text").inner_text().startswith("Message: Please send 3 lamps")
    tab.locator("#undo").click()
    assert tab.locator("#hint").is_visible()
    tab.locator("#prompt").press("Control+Enter")
    until(tab, DONE)
    assert tab.locator("#text .t").count() > 20


@pytest.mark.parametrize(
    ("kind", "source", "said"), [("json", "{", "Step 2, JSON schema: expected"), ("regex", "(", "Step 2, regular expression: ")]
)
def test_an_error_names_its_step(tab: Any, server: Running, kind: str, source: str, said: str) -> None:
    tab.goto(f"{server.url}/")
    tab.locator("#prompt").fill("x")
    tab.locator("#steps input").first.fill("2")
    tab.locator("#steps input").first.blur()
    tab.locator("#add").click()
    tab.locator("#steps select").nth(1).select_option(kind)
    tab.locator("#steps .source").fill(source)
    tab.locator("#run").click()
    until(tab, "document.querySelector('#error').textContent")
    assert tab.locator("#error").inner_text().startswith(said)
    assert tab.locator(".step.bad select").input_value() == kind
    assert below_the_fold(tab, "#error") == []
    tab.evaluate("document.querySelector('#error').textContent = ''")
    tab.locator("#steps .source").fill("[0-9]")
    tab.locator("#steps select").nth(1).select_option("regex")
    tab.locator("#run").click()
    until(tab, DONE)
    assert tab.locator(".step.bad").count() == 0


def test_an_error_while_a_step_writes_names_it(tab: Any, server: Running) -> None:
    tab.goto(f"{server.url}/")
    tab.locator("#prompt").fill("x")
    tab.locator("#steps select").select_option("regex")
    tab.locator("#steps .source").fill("[0-9]")
    tab.locator("#add").click()
    tab.locator("#steps select").nth(1).select_option("write")
    tab.locator("#steps .source").nth(1).fill("word " * 3000)  # longer than the context
    tab.locator("#run").click()
    until(tab, "document.querySelector('#error').textContent")
    assert tab.locator("#error").inner_text().startswith("Step 2, this text: expected at most 2048 tokens")


@pytest.mark.parametrize(("width", "height"), SCREENS)
def test_the_page_of_a_state_shows_all_of_it(tab: Any, tmp_path: Path, width: int, height: int) -> None:
    sampler = samplers.multinomial(3, temperature=2.0)
    state = continuous(generate.json(models.tiny(), SCHEMA, sampler=sampler))(PROMPT, rng=5, max_tokens=40)
    state.inspect(tmp_path / "state.html", top=10)
    tab.set_viewport_size({"width": width, "height": height})
    tab.goto((tmp_path / "state.html").as_uri())
    tab.locator("#text .t").last.click()
    assert_whole(tab)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_breaks_no_word(tab: Any, tmp_path: Path, width: int) -> None:
    report = Report()
    for line in range(1, 4):
        report.add({"_line": line, "record": {"customer": "Ana Novak", "quantity": 3}, "_details": {"logprobs": {"customer": -0.1}}})
    write_page(report, tmp_path / "report.html", "messages")
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto((tmp_path / "report.html").as_uri())
    assert tab.evaluate(BESIDE) <= 0
    heights = tab.evaluate("[...document.querySelectorAll('code.f')].map(e => e.getClientRects().length)")
    assert heights
    assert set(heights) == {1}
