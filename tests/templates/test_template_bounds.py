"""Templates that somebody hostile writes: random ones, of operations that grow values and of what then takes them, and those that once
ran on. Each ends within its budget, by an error of ours, and takes little memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.utils import Namespace
from transformers.utils.chat_template_utils import render_jinja_template

from outlines_cont import TemplateBudget
from outlines_cont.chats.template import ChatTemplate, _open_ended, _rendered, _up_to_open_end
from outlines_cont.errors import BudgetError, ChatError, OutlinesContError, TemplateError
from outlines_cont.jinja_sandbox import ITEM, MAX_DEPTH, TemplateUsage
from outlines_cont.pipelines import RowError, SetupError
from outlines_cont.pipelines.prompt_template import PromptTemplate
from outlines_cont.templates import Template
from tests.chat_models import TEMPLATES
from tests.examples import examples
from tests.fakes import random_model

MODEL = random_model()
SECONDS, MARGIN, MEGABYTES = 0.1, 1.5, 400

_STARTS = ["'a'", "'ab '", "text", "[1]", "(1, 2)", "[text]", "{'a': 1}", "7", "2.5", "range(99999)", "[[3], [1, 2]]", "'f'", "'\\n'"]
_NUMBERS = ["2", "-1", "3", "60", "999", "99999", "10 ** 9", "2 ** 61 - 1", "0.5", "0xffffffffffffffffffff"]
_GROWTH = {
    "string": [
        "ns.s ~ ns.s", "ns.s + ns.s", "ns.s * N", "ns.s[1:] + ns.s", "ns.s[::-1]", "ns.s | list", "ns.s | join(ns.s)", "ns.s.join(ns.s)",
        "ns.s | replace('a', ns.s)", "ns.s.replace('', ns.s)", "ns.s | indent(N)", "ns.s.split('a')", "ns.s.split()", "ns.s | int(base=32)",
        "ns.s.upper()", "ns.s | title", "ns.s | safe", "f(ns.s)", "ns.s | map('list')", "ns.s % N", "ns.s | tojson",
    ],
    "number": ["ns.s * ns.s", "ns.s ** N", "N ** ns.s", "ns.s * N", "-ns.s - N", "ns.s // N", "ns.s | round(N, 'ceil')", "'a' * ns.s",
        "[0] * ns.s"],
    "sequence": [
        "(ns.s, ns.s)", "[ns.s, ns.s]", "[ns.s]", "(ns.s,)", "[ns.s] * N", "ns.s + ns.s", "ns.s[::-1]", "ns.s[N:]", "ns.s | string",
        "ns.s | tojson(indent=16)", "ns.s | map('string') | list", "ns.s | map('list')", "ns.s | reverse", "ns.s | join('ab')",
        "{'a': ns.s, 'b': ns.s}", "[ns.s, ns.s] | sum(start=[])", "ns.s | select('in', ns.s)", "[ns.s] | groupby(0)", "ns.s * 60",
    ],
    "defined": ["{'a': ns.s, 'b': ns.s}", "dict(a=ns.s, b=ns.s)", "namespace(s=ns.s, t=ns.s)", "ns", "dict(a=ns.s).values()",
        "{'a': ns.s}.items() | list", "[ns.s, ns.t]", "ns.s | default(ns.s)", "{'a': ns.s} | items", "ns.s | string"],
}  # fmt: skip
"""By the test that a value must pass."""
_SINKS = [
    "ns.s", "ns.s == ns.t", "ns.s < ns.t", "ns.s in ns.t", "ns.s in [ns.t]", "ns.t.count(ns.s)", "ns.s.index(ns.t)", "{ns.s: 1}",
    "{1: 2}[ns.s]", "{1: 2}.get(ns.s)", "dict([(ns.s, 1)])", "[ns.s, ns.t] | unique", "[ns.s, ns.t] | sort", "[ns.s, ns.t] | max", "ns",
    "ns.s | unique | list", "ns.s | sort", "ns.s | sum", "ns.s | wordcount", "ns.s | length", "ns.s.rfind('b' ~ ns.s)", "ns.s is in ns.t",
    "ns.s.strip(ns.t)", "ns.s.rsplit(ns.t)", "ns.s | trim(ns.t)", "ns.s | pprint", "ns.s | center(N)", "ns.s | wordwrap(1)",
    "ns.s | urlize", "'%s' % (ns.s,)", "'{}'.format(ns.s)",
    "'%Nd' % 1", "ns.s | format(ns.s)", "ns.s | striptags", "ns.s | slice(N)", "ns.s | dictsort",
    "namespace([(ns.s, 1)])", "ns.s | groupby('0.0.0')", "ns.s | map(attribute='0.0.0') | list", "ns.s.__class__", "lipsum(N)", "ns.s(N)",
    "ns.s is divisibleby(N)", "ns.s | truncate(N, end=ns.t)", "range(N) | list", "range(N)[::-1] | sort", "N ** N", "ns.s | float", "loop",
    "ns.s | abs", "ns.s | xmlattr", "ns.s | filesizeformat", "ns.s | random", "ns.s.casefold().title()", "ns.s.partition(ns.t)", "g(ns.s)",
]  # fmt: skip
_LOOPS = [
    "{% for i in range(60) %}BODY{% endfor %}",
    "{% for i in range(99999) %}BODY{% endfor %}",
    "{% for i in range(999) %}{% for j in range(999) if j %}BODY{% endfor %}{% endfor %}",
    "{% macro h(n) %}BODY{{ h(n) }}{{ h(n) }}{% endmacro %}{{ h(1) }}",
    "{% for i in [1, 2] recursive %}BODY{{ loop([1, 2]) }}{% endfor %}",
    "{% set x %}{% for i in range(60) %}BODY{% endfor %}{% endset %}{{ x * 99 }}",
    "{% call(u) k(ns) %}BODY{% endcall %}",
]
_HEAD = (
    "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% macro g(x) %}{{ g((x, x)) }}{% endmacro %}"
    "{% macro k(x) %}{% for i in range(30) %}{{ caller(i) }}{% endfor %}{% endmacro %}"
)


@st.composite
def hostile(draw: st.DrawFn) -> str:
    """A template: a value that grows in a loop, and what is done with it there or afterwards."""

    def one(texts: list[str]) -> str:
        return draw(st.sampled_from(texts)).replace("N", draw(st.sampled_from(_NUMBERS)))

    kinds = draw(st.lists(st.sampled_from([*_GROWTH]), min_size=1, max_size=4))
    sets = "".join(f"{{% set ns.{draw(st.sampled_from('sst'))} = ({one(_GROWTH[kind])}) if ns.s is {kind} else ns.s %}}" for kind in kinds)
    inside = f"{{% set x = {one(_SINKS)} %}}" if draw(st.booleans()) else ""
    sinks = "".join(f"{{{{ {one(_SINKS)} }}}}" for _ in range(draw(st.integers(1, 2))))
    loop = draw(st.sampled_from(_LOOPS)).replace("BODY", sets + inside)
    return f"{_HEAD}{{% set ns = namespace(s={one(_STARTS)}, t={one(_STARTS)}) %}}{loop}{sinks}"


def held(run: Callable[[], object], seconds: float = SECONDS) -> None:
    """Run it, and check that it took no longer than `seconds`, and little memory; errors are those of this package."""
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.thread_time()
    with suppress(OutlinesContError, RowError, SetupError):
        run()
    assert time.thread_time() - started < seconds + MARGIN
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1000


@settings(max_examples=examples(24))
@given(hostile())
def test_a_prompt_is_bounded_whatever_is_written(source: str) -> None:
    held(lambda: PromptTemplate(source + "{{ text }}", max_seconds=SECONDS, max_characters=10_000).render({"text": "ab c"}))


@settings(max_examples=examples(12))
@given(hostile())
def test_a_program_is_bounded_whatever_is_written(source: str) -> None:
    budget = TemplateBudget(seconds=SECONDS, tokens=1000)
    held(lambda: Template(source + "{{ text }}").run(MODEL, text="ab c", budget=budget))


_PAIRS = "{% set ns = namespace(s=(1,)) %}{% for i in range(60) %}{% set ns.s = (ns.s, ns.s) %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        _PAIRS + "{% set d = {ns.s: 1} %}",
        _PAIRS + "{% set d = {1: 2}[ns.s] %}",
        _PAIRS + "{{ ns }}",
        _PAIRS + "{{ {'a': ns.s, 'b': ns.s}.values() | sort }}",
        "{% set ns = namespace(s=(1,)) %}{% for i in range(99999) %}{% set ns.s = (ns.s,) %}{% endfor %}{% set d = {1: 2}[ns.s] %}",
        "{% set ns = namespace(n=3) %}{% for i in range(27) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
        "{{ 'a' * 4000000 == ('a' * 4000000).rfind('b' ~ 'a' * 2000000) }}",
        "{{ ('a' * 4000000).strip('b' * 2000000 ~ 'a') }}",
        "{{ 2.5 | round(10 ** 9, 'ceil') }}",
        "{{ [[1]] * 90000 | sum(start=[]) }}",
        "{{ ([[1]] * 90000) | sum(start=[]) }}",
        "{% set s = 'ab' * 2000000 %}{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = ns.l + [s[1:]] %}{% endfor %}",
        "{{ ([[0]] * 9999) | map(attribute='0' ~ '.0' * 999) | list }}",
        "{{ " + "9" * 5000 + " }}",
        "{{ 0x" + "f" * 5000 + " }}",
        "{{ range(0, (2 ** 61 - 1) * 90000, 2 ** 61 - 1) | unique | list | length }}",
        "{% for i in range(10 ** 6) %}{{ gen(sampler=best_of(10 ** 6)) }}{% endfor %}",
        "{{ [] | tojson(separators=('a' * 99, 'b')) }}",
    ],
)
def test_what_once_ran_on_ends(source: str) -> None:
    budget = TemplateBudget(seconds=0.3)
    started = time.thread_time()
    with pytest.raises((TemplateError, BudgetError)):
        Template(">" + source).run(MODEL, budget=budget)
    assert time.thread_time() - started < 0.3 + MARGIN


@pytest.mark.parametrize(
    ("value", "size", "depth"),
    [
        ("abc", 4, 1),
        (b"abc", 4, 1),
        (7, 2, 1),
        (2**30, 11, 1),
        (None, 0, 1),
        (2.5, 0, 1),
        (range(99), 1, 1),
        (["a", "bc"], 1 + 2 * ITEM + 2 + 3, 2),
        (({"k": "abc"},), 1 + ITEM + 1 + ITEM + 2 + 4, 3),
        ({"k": "abc"}.values(), 1 + ITEM + 4, 2),
        ({"k": "abc"}.items(), 1 + ITEM + 1 + 2 * ITEM + 2 + 4, 3),
        ({"abc"}, 1 + ITEM + 4, 2),
        (Namespace(k="abc"), 1 + ITEM + 2 + 4, 2),
    ],
)
def test_a_value_is_counted_with_all_that_is_in_it(value: object, size: int, depth: int) -> None:
    usage = TemplateUsage(TemplateBudget(characters=size or None))
    assert usage.value(value) == depth
    assert usage.num_characters == size
    if size > 1:
        with pytest.raises(BudgetError):
            TemplateUsage(TemplateBudget(characters=size - 1)).value(value)


def test_nesting_is_bounded() -> None:
    value: object = 0
    for _ in range(MAX_DEPTH):
        value = (value,)
    assert TemplateUsage(TemplateBudget()).value(value) == MAX_DEPTH + 1
    with pytest.raises(TemplateError, match="nested at most 100 deep"):
        TemplateUsage(TemplateBudget()).value([value])


def test_a_hostile_chat_template_is_an_error_of_the_conversation() -> None:
    template = _PAIRS + "{% set d = {ns.s: 1} %}{{ messages[0]['content'] }}"
    with pytest.raises(ChatError, match="expected a chat template that reads the messages"):
        ChatTemplate.of(MODEL, template, {}).token_ids([{"role": "user", "content": "Hi"}])


def test_a_generator_without_tokens_left_is_refused_before_it_runs() -> None:
    size = Template(">ab").run(MODEL).state
    assert size is not None
    with MODEL.meter() as paid, pytest.raises(BudgetError) as caught:
        Template(">ab{{ gen(max_tokens=3) }}").run(MODEL, budget=TemplateBudget(tokens=size.shape[2]))
    assert paid.forwards == 0
    assert (caught.value.limit, caught.value.reached, caught.value.line) == ("tokens", size.shape[2] + 1, 1)


_REASONS = "{% for m in messages %}{{ m.role }}{{ m.thinking }}{{ m.reasoning_content or '-' }}{{ m.content | trim }}{% endfor %}"
_CALL = {"type": "function", "id": "abcdefghi", "function": {"name": "f", "arguments": {"a": 1}}}
_CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hi é <b>"}, {"role": "assistant", "content": " yes \n", "reasoning": "so"}],
    [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "x", "tool_calls": [_CALL], "thinking": "hm"},
        {"role": "tool", "name": "f", "content": "3", "tool_call_id": "abcdefghi"},
        {"role": "assistant", "content": "ok "},
    ],
]


@pytest.mark.parametrize("source", [*TEMPLATES.values(), _REASONS], ids=[*TEMPLATES, "reasoning"])
@pytest.mark.parametrize("messages", _CONVERSATIONS, ids=["short", "calls"])
@pytest.mark.parametrize("flag", ["", "add_generation_prompt", "continue_final_message"])
def test_a_chat_template_writes_what_transformers_writes(source: str, messages: list[dict[str, Any]], flag: str) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    options: dict[str, Any] = {"tools": [tool], "bos_token": "<s>", "eos_token": "</s>"}
    render: Any = render_jinja_template
    expected = render(conversations=[messages], chat_template=source, **options, **({flag: True} if flag else {}))
    options["add_generation_prompt"] = flag == "add_generation_prompt"
    if flag == "continue_final_message":
        written = _up_to_open_end(_rendered(source, _open_ended(messages), options))
    else:
        written = _rendered(source, messages, options)
    assert written == expected[0][0]
