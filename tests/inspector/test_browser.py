"""The page of the inspector in a real Chromium: clicks, keys, what screen readers are told, hostile texts, and many tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from outlines_cont import continuous, generate, models, samplers
from outlines_cont.inspector.page import page
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.inspection import inspection
from outlines_cont.state.row import StateRow
from tests.inspector.conftest import until
from tests.inspector.test_page import HOSTILE, PROMPT, SCHEMA

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of three orders, with what else was possible."""
    model = models.tiny()
    state = continuous(generate.json(model, SCHEMA, sampler=samplers.multinomial(3, temperature=2.0)))(PROMPT, rng=5, max_tokens=40)
    path = tmp_path_factory.mktemp("page") / "page.html"
    state.inspect(path, top=10)
    return path


def opened(tab: Any, path: Path) -> Any:
    tab.goto(path.as_uri())
    tab.wait_for_selector("#text .t")
    return tab


def test_a_click_and_the_pointer_show_what_is_known_of_a_token(tab: Any, written: Path) -> None:
    opened(tab, written)
    forced = tab.locator("#text .k-f").first
    forced.click()
    assert forced.get_attribute("aria-selected") == "true"
    told = tab.locator("#details").inner_text()
    assert "forced: the constraint left no choice" in told
    assert "What must follow" in told
    assert tab.locator("#details tr").count() > 10
    tab.locator("#text .k-p").first.hover()
    until(tab, "document.querySelector('#details').innerText.includes('prompt: given')")
    tab.mouse.move(5, 690)
    until(tab, "document.querySelector('#details').innerText.includes('forced: the')")


def test_colours_are_switched_and_are_never_the_only_sign(tab: Any, written: Path) -> None:
    opened(tab, written)
    looks = "(e => { const s = getComputedStyle(e); return s.borderBottom + s.fontStyle + s.outlineStyle + s.textDecorationLine; })"
    by_kind = tab.evaluate(f"[...document.querySelectorAll('.k-p, .k-g, .k-f')].map(e => [e.className, {looks}(e)])")
    assert len({look for name, look in by_kind if "k-f" in name} & {look for name, look in by_kind if "k-g" in name}) == 0
    for mode in ("probability", "entropy", "masked"):
        tab.locator(f"input[value={mode}]").check()
        assert tab.locator("#legend .t").count() == 5
        borders = tab.evaluate("[0, 2, 3, 4].map(n => getComputedStyle(document.querySelector(`#legend .b${n}`)).borderBottom)")
        assert len(set(borders)) == 4
        assert tab.locator("#text .t.b4, #text .t.b3, #text .t.b2, #text .t.b1, #text .t.b0").count() > 0


def test_text_and_tree_are_one_tab_stop_each_with_arrow_keys(tab: Any, written: Path) -> None:
    opened(tab, written)
    stops = []
    for _ in range(3):
        tab.keyboard.press("Tab")
        stops.append(tab.evaluate("document.activeElement.id || document.activeElement.name"))
    assert stops == ["mode", "tree", "text"]
    at = "document.activeElement.getAttribute('aria-activedescendant')"
    moves = [
        ("Home", "t0"),
        ("ArrowRight", "t1"),
        ("ArrowRight", "t2"),
        ("ArrowLeft", "t1"),
        ("PageDown", None),
        ("End", None),
        ("Home", "t0"),
    ]
    for key, wanted in moves:
        tab.keyboard.press(key)
        assert wanted in (None, tab.evaluate(at))
    tab.keyboard.press("ArrowDown")
    below = tab.evaluate(
        f"document.getElementById({at}).getBoundingClientRect().top - document.getElementById('t0').getBoundingClientRect().top"
    )
    assert below > 10
    tab.keyboard.press("ArrowUp")
    assert tab.evaluate(at) == "t0"


def test_the_tree_of_rows_is_a_tree_for_screen_readers(tab: Any, written: Path) -> None:
    opened(tab, written)
    assert tab.get_by_role("tree").count() == 1
    leaves = tab.locator("[role=treeitem]:not([aria-expanded])")
    assert leaves.count() == 3
    assert tab.locator("[aria-selected=true][role=treeitem]").count() == 1
    tab.locator("#tree").focus()
    tab.keyboard.press("End")
    assert leaves.last.get_attribute("aria-selected") == "true"
    tab.keyboard.press("Home")
    tab.keyboard.press("ArrowLeft")
    assert tab.locator("[role=treeitem]").first.get_attribute("aria-expanded") == "false"
    assert not leaves.last.is_visible()
    tab.keyboard.press("ArrowRight")
    assert leaves.last.is_visible()
    leaves.nth(1).locator(".node").click()
    assert leaves.nth(1).get_attribute("aria-selected") == "true"
    assert leaves.last.get_attribute("aria-selected") == "false"


def test_screen_readers_are_told_the_last_of_many_moves_once(tab: Any, written: Path) -> None:
    opened(tab, written)
    tab.wait_for_timeout(800)
    tab.evaluate("window.told = 0; new MutationObserver(() => window.told++).observe(document.querySelector('#status'), {childList: true})")
    tab.locator("#text").focus()
    tab.evaluate("for (let i = 0; i < 12; i++) document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))")
    tab.wait_for_timeout(1000)
    assert tab.evaluate("window.told") == 1
    assert ", prompt" in tab.locator("#status").text_content()


def test_hostile_texts_are_shown_and_do_nothing(tab: Any, tmp_path: Path) -> None:
    model = models.tiny()
    texts = [text.encode(errors="replace").decode() for text in HOSTILE]
    state = continuous(generate.text(model))(texts, max_tokens=2)
    (tmp_path / "page.html").write_text(page(inspection(model, state.rows, top=3), title="<b>&"), encoding="utf-8")
    opened(tab, tmp_path / "page.html")
    assert tab.locator("h1").inner_text() == "<b>&"
    assert tab.evaluate("document.scripts.length") == 2
    assert tab.locator("img").count() == 0
    for index, text in enumerate(texts):
        tab.locator("[role=treeitem]:not([aria-expanded]) > .node").nth(index).click()
        assert tab.evaluate("document.querySelector('#text').textContent.replaceAll('·', '')").startswith(text)
        tab.locator("#text .t").first.click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_from_their_ground(tab: Any, written: Path, scheme: str) -> None:
    tab.emulate_media(color_scheme=scheme)
    opened(tab, written)
    ink, paper = tab.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
    light = [sum(int(part) for part in colour[4:-1].split(",")[:3]) for colour in (ink, paper)]
    assert (light[0] < light[1]) == (scheme == "light")
    assert abs(light[0] - light[1]) > 450


def test_five_thousand_tokens_are_fluid(tab: Any, tmp_path: Path) -> None:
    """In every action the page takes at most 60 ms of processor time, the least of five turns, layout and style included."""
    random = Random(1)
    rows = []
    for _ in range(2):
        row = StateRow.of_prompt([random.randrange(300, 1280) for _ in range(5000)], RandomStream(1))
        kinds = bytes(random.choice(b"pgfah") for _ in range(5000))
        rows.append((replace(row, kinds=kinds, logprobs=tuple(-5 * random.random() for _ in kinds)),))
    (tmp_path / "page.html").write_text(page(inspection(models.tiny(), tuple(rows))), encoding="utf-8")
    opened(tab, tmp_path / "page.html")
    assert tab.locator("#text .t").count() == 5000
    meter = tab.context.new_cdp_session(tab)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds() -> float:
        return next(one["value"] for one in meter.send("Performance.getMetrics")["metrics"] if one["name"] == "TaskDuration")

    def clicks(found: str) -> Any:
        return lambda turn: tab.evaluate(f"turn => document.querySelectorAll({found}].click()", turn)

    actions = {
        "click": clicks("'#text .t')[2000 + 50 * turn"),
        "arrow": lambda turn: tab.locator("#text").press("ArrowRight"),
        "line": lambda turn: tab.locator("#text").press("ArrowDown"),
        "end": lambda turn: tab.locator("#text").press("Home" if turn % 2 else "End"),
        "hover": lambda turn: tab.mouse.move(500, 300 + 20 * turn),
        "colours": clicks("'#modes input')[turn % 2"),
        "row": clicks("'#tree li li .node')[turn % 2"),
    }
    least = dict.fromkeys(actions, 1.0)
    for turn in range(5):
        for name, act in actions.items():
            before = seconds()
            act(turn)
            tab.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
            least[name] = min(least[name], seconds() - before)
    assert max(least.values()) <= 0.06, least


def test_a_notebook_shows_states_with_and_without_rows(tab: Any, tmp_path: Path) -> None:
    state = continuous(generate.text(models.tiny()))(PROMPT, max_tokens=3)
    shown = "".join(one._repr_html_() for one in (state, state.fork(3), state[:0]))
    (tmp_path / "book.html").write_text(f"<!doctype html><meta charset=utf-8>{shown}", encoding="utf-8")
    tab.goto((tmp_path / "book.html").as_uri())
    one, three, none = (tab.frame_locator("iframe").nth(i) for i in range(3))
    one.locator("#text .t").last.click()
    assert not one.locator("nav").is_visible()
    assert three.locator("[role=treeitem]:not([aria-expanded])").count() == 3
    assert none.locator("h1").inner_text() == "State"
    assert none.locator("#text .t").count() == 0
