from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.pipelines import SetupError, TemplateError
from outlines_cont.pipelines.prompt_template import DEFAULT_SOURCE, PromptTemplate


@given(st.text())
def test_the_default_prompt_holds_the_text_as_it_is(text: str) -> None:
    assert f"Message: {text}\nRecord: " == PromptTemplate(DEFAULT_SOURCE).render({"text": text})


def test_a_template_sees_fields_rows_loops_and_filters() -> None:
    template = PromptTemplate("{% for tag in tags %}{{ tag|upper }} {% endfor %}{{ row['due date'] }} {{ text[:3] }}")

    assert template.render({"text": "abcdef", "tags": ["a", "b"], "row": {"due date": "today"}}) == "A B today abc"


def test_text_is_not_escaped_and_not_run() -> None:
    assert PromptTemplate("{{ text }}").render({"text": "<b>{{ 7 * 7 }}</b>"}) == "<b>{{ 7 * 7 }}</b>"


def test_one_line_break_at_the_end_of_a_file_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "p.jinja").write_text("{{ text }}\nRecord: \n")

    assert PromptTemplate.from_file(tmp_path / "p.jinja").render({"text": "x"}) == "x\nRecord: "


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{{ text", "line 2 is malformed"),
        ("{{ text|nosuchfilter }}", "nosuchfilter"),
        ("{% if text %}", "line 1 is malformed"),
        ("Record: ", "every prompt would be the same"),
        ("{{ range(3)|list }}", "every prompt would be the same"),
        ("", "every prompt would be the same"),
        ("{{ text }}{% include 'other' %}", "without other files"),
        ("{% extends 'other' %}{{ text }}", "without other files"),
        ("{{ " + "(" * 5000 + "text" + ")" * 5000 + " }}", "nested too deeply"),
    ],
)
def test_an_unusable_template_is_refused_when_it_is_made(source: str, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        PromptTemplate(source, "the file").check_used()


def test_a_template_without_a_value_of_the_row_is_used_with_images() -> None:
    PromptTemplate("Record: ").check_used(has_images=True)


@pytest.mark.parametrize("content", [None, b"\xff{{ text }}"])
def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "p.jinja"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SetupError, match=r"p\.jinja"):
        PromptTemplate.from_file(path)


def test_a_missing_name_is_named_and_so_is_what_is_there() -> None:
    with pytest.raises(TemplateError, match="'subject' is undefined; the row has 'text', 'body'"):
        PromptTemplate("{{ subject }}").render({"text": "a", "body": "b"})


@pytest.mark.parametrize("source", ["{{ text.nosuch }}", "{{ row.a.b }}", "{{ text.nosuch|upper }}"])
def test_missing_attributes_are_errors_too(source: str) -> None:
    with pytest.raises(TemplateError):
        PromptTemplate(source).render({"text": "a", "row": {}})


@pytest.mark.parametrize("source", ["{{ 1 / zero }}", "{{ text + 1 }}", "{{ text|round }}", "{{ text() }}"])
def test_whatever_an_expression_raises_is_an_error_of_the_row(source: str) -> None:
    with pytest.raises(TemplateError, match="fails on this row"):
        PromptTemplate(source).render({"text": "a", "zero": 0})


@pytest.mark.parametrize(
    "source",
    [
        "{{ text.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}{{ text }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}{{ text }}",
        "{{ lipsum.__globals__['os'] }}{{ text }}",
        "{{ text.format.__globals__ }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(text) }}",
        "{{ row.update({'a': 1}) }}",
        "{{ row.tags.append(1) }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    row = {"tags": [1]}

    with pytest.raises(TemplateError):
        PromptTemplate(source).render({"text": "a", "row": row})
    assert row == {"tags": [1]}


@given(st.integers(0, 40))
def test_the_limit_is_exact(length: int) -> None:
    template = PromptTemplate("{% for c in text %}{{ c }}{% endfor %}", max_characters=20)
    text = "x" * length

    if length <= 20:
        assert text == template.render({"text": text})
    else:
        with pytest.raises(TemplateError, match="at most 20 characters"):
            template.render({"text": text})


_HUGE = 10**9


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(s=text) %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}",
        "{% set ns = namespace(s=[text]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[text], t=[text]) %}{% for i in range(60) %}{% set ns.s = [ns.s, ns.s] %}"
        "{% set ns.t = [ns.t, ns.t] %}{% endfor %}{{ ns.s == ns.t }}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}{{ text }}",
        "{{ '%1000000000d' % 1 }}{{ text }}",
        "{{ text.ljust(HUGE) }}",
        "{{ text|center(HUGE) }}",
        "{{ (text ~ '\n')|indent(HUGE, true) }}",
        "{{ '{:1000000000}'.format(text) }}",
        "{{ ('\t' ~ text).expandtabs(HUGE) }}",
        "{{ (text * 9000).replace('', text * 9000) }}",
        "{{ range(99999)|map('center', 99999)|join(text * 9000) }}",
        "{{ lipsum(HUGE) ~ text }}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) ~ text }}",
        "{% set ns = namespace(n=3) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}{{ ns.n ~ text }}",
    ],
)
def test_a_template_is_bounded_in_time_and_memory_whatever_it_does(source: str) -> None:
    used, started = time.process_time(), time.perf_counter()

    with pytest.raises((TemplateError, SetupError), match="max_|limit|RecursionError|SecurityError|undefined|No filter|deep"):
        PromptTemplate(source.replace("HUGE", str(_HUGE)), max_characters=10_000, max_seconds=0.2).render({"text": "abc"})
    assert time.process_time() - used < 1
    assert time.perf_counter() - started < 5
    # The next row is as before.
    assert PromptTemplate("{{ text }}").render({"text": "x"}) == "x"


def test_an_error_names_the_limit_and_how_to_raise_it() -> None:
    source = "{% for a in range(n) %}{% for b in range(n) %}{% endfor %}{% endfor %}{{ text * n * n }}"

    assert PromptTemplate(source).render({"text": "a", "n": 10}) == "a" * 100
    with pytest.raises(TemplateError, match=r"within 0\.05 seconds.*PromptTemplate\(source, max_seconds="):
        PromptTemplate(source, max_seconds=0.05).render({"text": "a", "n": 20_000})
    with pytest.raises(TemplateError, match=r"20,000,000 characters.*PromptTemplate\(source, max_characters="):
        PromptTemplate("{{ text * n * n }}").render({"text": "a", "n": 20_000})


def test_threads_take_turns() -> None:
    template = PromptTemplate("{{ text }}!")
    with ThreadPoolExecutor(4) as pool:
        assert [f"{i}!" for i in range(200)] == list(pool.map(lambda i: template.render({"text": i}), range(200)))
