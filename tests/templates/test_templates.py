"""Templates: what they write, generate and capture; their budget, their sandbox, and what they refuse."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from outlines_cont import Tokens, continuous, engine_of, generate, models, samplers
from outlines_cont.control import Budget
from outlines_cont.errors import (
    BudgetError,
    EmptyPrompt,
    IncompleteOutput,
    ModelMismatch,
    OptionError,
    SampleMismatch,
    SpecialTokenWarning,
    UnknownOption,
    UserCodeError,
)
from outlines_cont.jinja_sandbox import TemplateUsage, _replace_cost
from outlines_cont.templates import Template, TemplateBudget, TemplateError
from outlines_cont.templates.program import KINDS
from outlines_cont.templates.rewriting import GENERATING
from tests.fakes import END_OF_TURN, FakeTokenizer, random_model, random_network, saying, scripted_model

MODEL = random_model()


def refused(source: str, **options: Any) -> TemplateError:
    with pytest.raises(TemplateError) as caught:
        Template(source).run(MODEL, **options)
    return caught.value


def test_a_run_leaves_nothing_in_the_context() -> None:
    before = dict(contextvars.copy_context())
    assert Template("{{ gen('a', max_tokens=1) }}").run(MODEL).captures
    for _ in Template(">{{ gen('a', max_tokens=2) }}{{ gen('b', max_tokens=2) }}").stream(MODEL):
        assert before == dict(contextvars.copy_context())
    refused(">{{ gen('a', max_tokens=1) }}{{ 1 / 0 }}")
    assert before == dict(contextvars.copy_context())


# -- what is generated -------------------------------------------------------------------------------------------------


def test_values_are_captured_with_their_types_and_can_be_read() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"]}
    source = (
        ">{{ choice('kind', ['ab', 'yes']) }} {% if kind == 'ab' %}A{% else %}B{% endif %}"
        "{{ json('record', schema, whitespace='none') }} {{ record.n + 1 }} {{ grammar('word', 'start: \"no\"') }} {{ kind }}"
    )
    result = Template(source).run(MODEL, schema=schema | {"additionalProperties": False}, sampler=samplers.greedy())
    n = result.captures["record"]["n"]
    kind = result.captures["kind"]
    assert set(result.captures) == {"kind", "record", "word"}
    assert result.text == f'>{kind} {"A" if kind == "ab" else "B"}{{"n":{n}}} {n + 1} no {kind}'
    assert dict(result.finish_reasons) == dict.fromkeys(result.captures, "constraint")
    assert str(result) == str(result.state) == result.text


def test_a_pydantic_class_and_a_generator_may_be_values() -> None:
    class Item(BaseModel):
        n: bool

    number = generate.regex(MODEL, "[0-9]{2}")
    result = Template(">{{ json('item', Item) }} {{ gen('n', number) }}{{ nothing }}").run(MODEL, Item=Item, number=number, nothing=None)
    assert isinstance(result.captures["item"], Item)
    assert result.captures["n"].isdecimal()
    assert result.text.endswith("None")


def test_names_in_loops_are_lists_and_read_as_the_last_value() -> None:
    source = ">{% for i in range(count) %}{{ gen('a', regex='[ab]') }}{{ a }}{% endfor %}{{ gen('b', regex='[ab]') }}"
    for count in (0, 1, 3):
        result = Template(source).run(MODEL, count=count)
        assert len(result.captures["a"]) == count == len(result.finish_reasons["a"])
        assert isinstance(result.captures["b"], str)
        assert result.text == ">" + "".join(2 * a for a in result.captures["a"]) + result.captures["b"]


def test_a_name_that_comes_again_is_a_list_and_one_in_two_branches_is_not() -> None:
    again = Template(">{{ gen('a', regex='[ab]') }}{{ gen('a', regex='[ab]') }}").run(MODEL)
    assert len(again.captures["a"]) == 2
    source = ">{% if x %}{{ gen('a', regex='[ab]') }}{% else %}{{ gen('a', regex='[01]') }}{% endif %}"
    assert Template(source).run(MODEL, x=False).captures["a"] in ("0", "1")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% set n = gen('n', regex='[3]') | int %} {{ n + 1 }}", "3 4"),
        ("{% if gen('n', regex='[3]') == '3' %} yes{% endif %}", "3 yes"),
        ("{% for i in range(gen('n', regex='[2]') | int) %} {{ i }}{% endfor %}", "2 0 1"),
        ("{% do gen('n', regex='[3]') %} {{ n }}", "3 3"),
        ("{% with m = gen('n', regex='[3]') %} {{ m }}{% endwith %}", "3 3"),
        ("{{ gen('n', regex='[3]') if yes else 'no' }}", "3"),
        ("{{ gen('n', regex='[3]') if not yes else 'no' }}", "no"),
        ("{{ 'no' if not yes else gen(regex='[3]') if yes }}", "3"),
        ("{% block a %}{{ gen('n', regex='[3]') }}{% endblock %}", "3"),
        ("{% for i in [1, 2] %}{{ gen('n' ~ i, regex='[3]') }}{{ captures['n' ~ i] }}{% endfor %}", "3333"),
        ("{{ gen('n', regex='[3]') }}{% raw %}{{ n }}{% endraw %}{# no #}", "3{{ n }}"),
        ("{{ gen('n', **{'regex': '[3]'}) }}{{ n is defined }}{{ yes }}", "3TrueTrue"),
        ("{{ gen(*['n'], regex='[3]') }}{{ captures.n }}", "33"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ gen('n', regex='[3]') }}{% endfor %}", "33"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(gen) if false else m(1) }}", None),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ gen('n', regex='[3]') }}{{ m(n) }}", "3[3]"),
        ("{{ [1, 2] | tojson }}{{ {'a': 'é'} | tojson }}{{ ['b', 'a'] | sort | join(', ') }}", '[1, 2]{"a": "é"}a, b'),
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% for x in xs %}{{ loop.index }}/{{ loop.length }}{{ '' if loop.last else ' ' }}{% endfor %}", "1/2 2/2"),
        ("{{ row['xs'] | join }}{{ row.keys() | list }}{{ xs | length }}", "ab['xs']2"),
        ("{{ foo | default('d') }}{{ foo is defined }}{{ foo is undefined and not foo is defined }}", "dFalseTrue"),
        ("{{ xs | map('upper') | list | join }}{{ xs | select('eq', 'a') | list }}", "AB['a']"),
    ],
)
def test_generators_stand_where_jinja_has_expressions(source: str, text: str | None) -> None:
    values = {name: value for name, value in {"yes": True, "xs": ["a", "b"]}.items() if f"{name} " in source}
    if text is None:
        assert "expected a call, `gen(...)`" in str(refused(f">{source}"))
    else:
        values |= {"yes": True} if "{{ yes }}" in source else {}
        result = Template(f">{source}").run(MODEL, **values)
        assert result.text == f">{text}"


def test_options_are_those_of_a_call() -> None:
    options: dict[str, Any] = {"max_tokens": 6, "stop_at": "a", "min_tokens": 2, "heal": True, "draft": "lookup"}
    source = ">ab{{ gen('x', max_tokens=6, stop_at='a', min_tokens=2, heal=true, draft='lookup', sampler=warm, rng=5) }}"
    warm = samplers.multinomial(temperature=2.0)
    result = Template(source).run(MODEL, warm=warm)
    expected = continuous(generate.text(MODEL, sampler=warm))(">ab", rng=5, **options)
    assert result.state == expected
    assert result.state is not None
    assert result.state.logprobs.nan_to_num(1.0).tolist() == expected.logprobs.nan_to_num(1.0).tolist()
    assert result.captures["x"] == expected.value


def test_samplers_and_bans_can_be_written_in_the_template() -> None:
    source = ">{{ gen('x', max_tokens=3, sampler=multinomial(temperature=3), policies=[ban(['a'])]) }}"
    text = Template(source).run(MODEL, rng=1).captures["x"]
    assert "a" not in text
    assert text != Template(source).run(MODEL, rng=2).captures["x"]


@pytest.mark.parametrize("sampler", ["best_of(3)", "beam_search(3)"])
def test_a_search_goes_on_with_its_best_text(sampler: str) -> None:
    source = f">{{{{ gen('x', regex='[ab]{{3}}', sampler={sampler}) }}}}!{{{{ gen('y', regex='[ab]') }}}}"
    result = Template(source).run(MODEL, rng=3)
    assert result.state is not None
    assert result.state.shape[:2] == (1, 1)
    chosen: Any = samplers.best_of(3) if "best" in sampler else samplers.beam_search(3)
    prompt = Template(">").run(MODEL, rng=3).state
    assert prompt is not None
    first = continuous(generate.regex(MODEL, "[ab]{3}", sampler=chosen))(prompt).best()
    assert result.captures["x"] == first.value
    second = continuous(generate.regex(MODEL, "[ab]"))(first + "!")
    assert result.state == second


def test_several_texts_are_refused() -> None:
    with pytest.raises(OptionError, match=r"line 1, column 4: expected a sampler of one text.*best_of\(2\)"):
        Template("{{ gen(sampler=multinomial(2)) }}").run(MODEL)


def test_a_state_goes_on_and_what_it_holds_is_not_fed_again() -> None:
    state = continuous(generate.regex(MODEL, "[ab]{4}"))("a long beginning:", rng=4)
    template = Template(" and {{ gen('x', regex='[ab]{2}') }}.")
    with MODEL.meter() as paid:
        result = template.run(MODEL, state=state)
    expected = continuous(generate.regex(MODEL, "[ab]{2}"))(state + " and ")
    assert result.state == expected + "."
    assert result.text == f" and {result.captures['x']}."
    assert paid.fed_tokens < 10
    rows = template.run(MODEL, [{}, {}], state=state, sampler=samplers.multinomial(temperature=5))
    assert all(row.error is None for row in rows)


def test_text_alone_is_a_prompt_and_an_empty_template_is_nothing() -> None:
    result = Template("ab {{ x }}").run(MODEL, x=1)
    assert (result.text, dict(result.captures)) == ("ab 1", {})
    assert Template("").run(MODEL).state is None
    assert Template("{{ gen('x', regex='a') }}").run(MODEL).text == "a"
    bare = models.from_transformers(random_network("llama"), FakeTokenizer(bos=False))
    with pytest.raises(EmptyPrompt, match="line 1, column 4: expected some text before the first generator"):
        Template("{{ gen('x', regex='a') }}").run(bare)


def test_a_result_cannot_be_changed() -> None:
    result = Template(">{{ gen('x', regex='a') }}").run(MODEL)
    with pytest.raises(TypeError):
        result.captures["x"] = "b"  # type: ignore[index]
    with pytest.raises(AttributeError):
        result.text = ""  # type: ignore[misc]
    assert repr(result) == "TemplateResult({'x': 'a'}, 2 characters)"


def test_a_template_can_be_copied_and_pickled() -> None:
    template = Template(">{{ gen('x', regex='a') }}", special=True)
    for other in (copy.deepcopy(template), pickle.loads(pickle.dumps(template))):  # noqa: S301
        assert (other.source, other.special) == (template.source, True)
        assert other.run(MODEL).text == ">a"
    assert repr(template) == "Template(\">{{ gen('x', regex='a') }}\")"


def test_a_file_is_read_without_its_last_line_break(tmp_path: Path) -> None:
    path = tmp_path / "program.jinja"
    path.write_text(">é{{ gen('x', regex='a') }}\n\n", encoding="utf-8")
    assert Template.from_file(path).run(MODEL).text == ">éa\n"
    path.write_text("{{ gen(", encoding="utf-8")
    with pytest.raises(TemplateError, match=r"program.jinja', line 1, column \d+: expected a Jinja template"):
        Template.from_file(path)
    with pytest.raises(TemplateError, match="expected a UTF-8 text file as the template, but .* cannot be read"):
        Template.from_file(tmp_path / "none.jinja")


# -- many rows ---------------------------------------------------------------------------------------------------------


def test_rows_share_forwards_wherever_they_are_and_a_bad_one_fails_alone() -> None:
    source = ">{{ x.y }}{% for i in range(n) %}{{ gen('a', regex='[ab]{3}') }}-{% endfor %}"
    rows: list[Any] = [{"x": {"y": "a"}, "n": n} for n in (3, 2, 3)]
    template = Template(source)
    with MODEL.meter() as one:
        alone = template.run(MODEL, **rows[0])
    rows[1:1] = [{"x": {}, "n": 1}, {"n": 1}, {"x": {"y": ""}, "n": "?"}]
    with MODEL.meter() as paid:
        results = template.run(MODEL, rows)
    assert [type(result.error) for result in results] == [type(None), *[TemplateError] * 3, type(None), type(None)]
    assert paid.forwards <= one.forwards + 1
    assert results[0].state == results[-1].state == alone.state
    assert [len(result.captures["a"]) for result in results] == [3, 0, 0, 0, 2, 3]
    assert "line 1, column" in str(results[2].error)


def test_values_are_for_all_rows_and_rows_may_be_any_number() -> None:
    template = Template("{{ both }}{{ own }}{{ gen('x', regex='[ab]') }}")
    taken: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for i in range(40):
            taken.append(i)
            yield {"own": str(i), "unused": 1}

    engine = engine_of(MODEL)
    before, engine.max_rows = engine.max_rows, 2
    try:
        found = template.iterate(MODEL, rows(), both=">", rng=1)
        first = next(found)
        assert len(taken) <= 16  # the others are taken as there is room for them
        short = Template("{{ x }}").run(MODEL, [{"x": i} if i % 3 else {} for i in range(60)])
        texts = [first.text, *(result.text for result in found)]
    finally:
        engine.max_rows = before
    assert [result.text for result in short] == [str(i) if i % 3 else "" for i in range(60)]
    assert [text[:-1] for text in texts] == [f">{i}" for i in range(40)]


def test_an_event_loop_is_not_held_up_and_tasks_share_steps() -> None:
    template = Template(">{{ n }}{{ gen('a', regex='[ab]{3}') }}")

    async def both() -> tuple[Any, Any]:
        return await asyncio.gather(template.arun(MODEL, n=1), template.arun(MODEL, [{"n": 2}, {"m": 3}]))

    one, rows = asyncio.run(both())
    assert one.text == template.run(MODEL, n=1).text
    assert rows[0].text == template.run(MODEL, n=2).text
    assert isinstance(rows[1].error, TemplateError)
    with pytest.raises(TemplateError):
        asyncio.run(template.arun(MODEL))


def test_seeds_are_those_of_a_batch_of_prompts() -> None:
    warm = samplers.multinomial(temperature=3)
    template = Template(">{{ gen('a', max_tokens=4) }}")
    generator = continuous(generate.text(MODEL, sampler=warm))
    rows = template.run(MODEL, [{}, {}], rng=6, sampler=warm)
    assert [row.text for row in rows] == list(generator([">", ">"], rng=6, max_tokens=4))
    own = template.run(MODEL, [{}, {}], rng=[6, 9], sampler=warm)
    assert own[1].text == template.run(MODEL, rng=9, sampler=warm).text
    with pytest.raises(ValueError, match="expected 2 seeds"):
        template.run(MODEL, [{}, {}], rng=[6])


# -- streams -----------------------------------------------------------------------------------------------------------

_STREAMED = ">a{{ gen('x', max_tokens=5, heal=true) }}-{{ choice('k', ['yes', 'no']) }}{{ gen('y', regex='[ab]', sampler=best_of(2)) }}."


def test_a_stream_tells_what_is_written_as_it_comes() -> None:
    template = Template(_STREAMED)
    expected = template.run(MODEL, rng=1)
    stream = template.stream(MODEL, rng=1, top=2)
    events = list(stream)
    assert "".join(event.text for event in events) == expected.text
    assert stream.result.state == expected.state
    assert stream.result.captures == expected.captures
    assert events[0].text == ">a"
    for name in "xky":
        assert "".join(event.text for event in events if event.name == name) == expected.captures[name]
    told = [event for event in events if event.name == "x"]
    assert len(told) > 1
    assert told[0].top[0][0][1] <= 0
    assert told[-1].finish_reason == "length"
    assert list(stream) == []


def test_a_stream_that_is_left_has_what_there_was() -> None:
    template = Template(_STREAMED)
    stream = template.stream(MODEL, rng=1)
    for event in stream:
        if event.name == "x" and event.text:
            break
    assert engine_of(MODEL).num_running == 0
    assert template.run(MODEL, rng=1).text.startswith(stream.result.text)
    assert len(stream.result.text) > 2
    assert "k" not in stream.result.captures


def test_a_search_that_is_left_has_written_nothing() -> None:
    stream = Template(">{{ gen('x', regex='[ab]{9}', sampler=best_of(3)) }}").stream(MODEL)
    next(iter(stream))
    engine = engine_of(MODEL)
    stream.close()
    assert (stream.result.text, engine.num_running) == (">", 0)
    result = Template(">{{ gen('x', regex='[ab]{9}', sampler=beam_search(3)) }}").run(MODEL, [{}], budget=TemplateBudget(seconds=1e-6))[0]
    assert isinstance(result.error, BudgetError)
    assert result.state is None or result.state.shape[:2] == (1, 1)


def test_a_stream_goes_on_in_an_event_loop_and_raises_at_its_end() -> None:
    template = Template(">{{ gen('x', regex='[ab]{3}') }}{{ 1 / n }}")

    async def told(n: int) -> str:
        async with template.stream(MODEL, n=n) as stream:
            return "".join([event.text async for event in stream])

    assert asyncio.run(told(1)) == template.run(MODEL, n=1).text
    with pytest.raises(TemplateError, match="ZeroDivisionError"):
        asyncio.run(told(0))
    with pytest.raises(TemplateError, match="ZeroDivisionError"):
        list(template.stream(MODEL, n=0))
    with template.stream(MODEL, n=1) as never:
        pass
    assert list(never) == []


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "place", "message"),
    [
        ("a\n  {{ foo | upper }}", (2, 6), "'foo' is undefined"),
        ("{{ gen('a' }}", (1, 12), "cannot be read"),
        ("ab\n{% for x in %}", (2, 13), "cannot be read"),
        ("{% if x %}", (1, 9), "cannot be read"),
        ("a {{ 'b' ?? }}", (1, 10), "unexpected char '?'"),
        ("\n{{ 'b' }}\n\n {{ \n'b'  ?? }}", (5, 6), "unexpected char '?'"),
        ("a\n{{ gen('x',\n  max_tokens=0) if true }}", None, "expected an int, 1 or more"),
        ("{{ 'a' | uper }}", (1, 10), "No filter named 'uper'"),
        ("{{ 'a' | center(9) }}", (1, 10), "No filter named 'center'"),
        ("{{ 1 / 0 }}", (1, None), "ZeroDivisionError"),
        ("x\n{{ gen('a') ~ 'b' }}", (2, 4), "alone in its `{{ ... }}`"),
        ("{{ gen('a') | upper }}", (1, 4), "alone in its"),
        ("{% macro m() %}{{ gen('a') }}{% endmacro %}", (1, 19), "in a macro"),
        ("{% set x %}{{ gen('a') }}{% endset %}", (1, 15), "in a `set` block"),
        ("{% filter upper %}{{ gen('a') }}{% endfilter %}", (1, 22), "in a `filter` block"),
        ("{% for x in [1] recursive %}{{ gen('a') }}{% endfor %}", (1, 32), "in a recursive loop"),
        ("{{ gen }}", (1, 4), "expected a call, `gen(...)`"),
        ("{% set choice = 1 %}", (1, 8), "expected another name than `choice`"),
        ("{% for a in [1] %}{{ gen('a') }}{% endfor %}", (1, 8), "expected one meaning of `a`"),
        ("{{ gen('range') }}", (1, 4), "expected another name than `range`"),
        ("{% set a = gen('a') %}\n{{ gen('a') }}", (2, 4), "which is `set` elsewhere"),
        ("{% include 'x' %}", (1, 4), "got `include`"),
        ("{% import 'x' as y %}", (1, 4), "got `import`"),
        ("{% extends 'x' %}", (1, 4), "got `extends`"),
        (">{% if a == 1 %}{% endif %}{{ gen('a', max_tokens=1) }}", (1, 8), "'a' is not generated yet"),
        (">{{ choice('a') }}", (1, 5), 'expected `choice("name", ["one", "other"])`'),
        (">{{ choice(['a', 'b'], ['b']) }}", (1, 5), "expected a name, or none"),
        (">{{ 'a'.upper }}", (1, None), "`()` to a function"),
        (">{{ '%d' % 3 }}", (1, None), "join texts by `~`"),
        (">{{ {[1]: 2} }}", (1, None), "keys are texts and numbers"),
        (">{{ 1[2] }}", (1, None), "has no element 2"),
        (">{{ [] | tojson(indent='a') }}", (1, None), "expected an indent from 0 to 16"),
    ],
)
def test_an_error_names_its_place(source: str, place: tuple[int, int | None] | None, message: str) -> None:
    if place is None:  # of a generator, where its name stands
        with pytest.raises(OptionError, match="line 2, column 4"):
            Template(source).run(MODEL)
        return
    error = refused(source, **({"xs": []} if "xs" in source else {}))
    assert message in str(error)
    assert (error.line, error.column) == place
    assert f"line {place[0]}" in str(error)


@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (">{{ gen('a', max_token=3) }}", UnknownOption, "Did you mean 'max_tokens'?"),
        (">{{ gen('a', temperature=3) }}", UnknownOption, "Give it to the sampler"),
        (">{{ gen('a', seed=3) }}", UnknownOption, "Write `rng`"),
        (">{{ json('a', {}, white_space='none') }}", UnknownOption, "Did you mean 'whitespace'?"),
        (">{{ gen('a', regex='a', choice=['a']) }}", OptionError, "at most one constraint"),
        (">{{ gen('a', 'a') }}", OptionError, "expected a generator"),
        (">{{ choice('a', 'ab') }}", OptionError, "Write \\['ab'\\]"),
        (">{{ gen('a', max_tokens=0) }}", OptionError, "expected an int, 1 or more"),
        (">{{ gen('a', regex='[ab]{9}', max_tokens=3) }}", IncompleteOutput, "Raise `max_tokens`"),
    ],
)
def test_errors_of_generators_keep_their_type_and_get_a_place(source: str, kind: Any, message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        Template(source).run(MODEL)
    assert str(caught.value).startswith("line 1, column 5: ")
    assert (caught.value.line, caught.value.column) == (1, 5)
    assert caught.value.result.error is caught.value


def test_a_name_that_is_misspelt_is_told() -> None:
    source = ">{{ choice('kind', ['a']) }}{% if knd == 'a' %}{% endif %}"
    assert "'knd' is undefined. Did you mean 'kind'?" in str(refused(source))
    assert "'txt' is undefined. Did you mean 'text'?" in str(Template("{{ txt }}").run(MODEL, [{"text": 1}])[0].error)


def test_a_function_that_waits_for_an_event_loop_is_refused() -> None:
    async def wait() -> int:
        await asyncio.sleep(0)
        return 1

    async def answer() -> int:
        return 1

    async def run(function: Any) -> str:
        result = await Template(">{{ f() }}").arun(MODEL, f=function)
        return str(result.text)

    assert asyncio.run(run(answer)) == ">1"
    with pytest.raises(TemplateError, match="line 1.*expected a function that can be called"):
        asyncio.run(run(wait))


def test_what_ends_a_program_ends_one_row_alone() -> None:
    def leave() -> None:
        raise SystemExit

    results = Template(">{{ f() if n else gen('x', regex='a') }}").run(MODEL, [{"n": 1}, {"n": 0}], f=leave)
    assert isinstance(results[0].error, UserCodeError)
    assert results[1].text == ">a"


def test_threads_run_templates_at_the_same_time() -> None:
    template = Template(">{{ n }}{% for i in range(3) %}{{ gen('x', regex='[ab]{2}') }}{% endfor %}")
    expected = [template.run(MODEL, n=n).text for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda n: template.run(MODEL, n=n).text, range(4))) == expected


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "[" * 3000 + "]" * 3000 + " }}",
        "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
        "{{ " + "1 + " * 9000 + "1 }}",
        "{{ " + "not " * 9000 + "1 }}",
    ],
)
def test_what_is_nested_too_deeply_is_refused(source: str) -> None:
    with pytest.raises(TemplateError, match="nested too deeply"):
        Template(source)


def test_what_there_was_stays_in_the_result() -> None:
    result = Template(">{{ gen('a', regex='[ab]') }}-{{ gen('b', regex='[ab]{9}', max_tokens=3) }}").run(MODEL, [{}])[0]
    assert isinstance(result.error, IncompleteOutput)
    assert result.captures["a"] in ("a", "b")
    assert result.text.startswith(f">{result.captures['a']}-")
    with pytest.raises(IncompleteOutput):
        result.check()


def test_a_malformed_pattern_says_where_it_stands() -> None:
    with pytest.raises(ValueError, match="unterminated|unclosed|missing") as caught:
        Template("\n>{{ gen('a', regex='(a') }}").run(MODEL)
    assert "line 2, column 5" in caught.value.__notes__[0]


_FOREIGN = models.from_transformers(random_network("llama"), FakeTokenizer())


@pytest.mark.parametrize(
    ("model", "rows", "options", "kind", "said"),
    [
        (MODEL, None, {"txt": "a"}, OptionError, r"that the template reads \(text\), got 'txt'. Did you mean 'text'\?"),
        (MODEL, None, {"text": "a", "a": "b"}, OptionError, "got 'a', which it generates"),
        (MODEL, {"text": "a"}, {}, OptionError, "expected a list of dicts as `rows`"),
        (MODEL, [{"text": "a"}, ["b"]], {}, OptionError, "expected a dict with names as row 1"),
        (MODEL, None, {"budget": 3}, OptionError, "expected a `TemplateBudget`"),
        (MODEL, None, {"state": "Ohio"}, OptionError, "expected a SequenceState or None"),
        (MODEL, None, {"state": ...}, SampleMismatch, "expected a state of one row"),
        (_FOREIGN, None, {"state": 0}, ModelMismatch, "model"),
        (MODEL, None, {"sampler": "greedy"}, OptionError, "expected a sampler"),
        ("model", None, {}, OptionError, "expected"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(model: Any, rows: Any, options: dict[str, Any], kind: Any, said: str) -> None:
    if options.get("state") in (..., 0):
        state = continuous(generate.regex(MODEL, "a"))([">", ">"])
        options = {"state": state if options["state"] is ... else state[0, ...]}
    given = {**({} if rows is not None or "txt" in options else {"text": "a"}), **options}
    with pytest.raises(kind, match=said):
        Template(">{{ text }}{{ gen('a', regex='a') }}").run(model, *([rows] if rows is not None else []), **given)
    with pytest.raises(OptionError, match="expected the text of a template"):
        Template(Path("x"))  # type: ignore[arg-type]


# -- the sandbox and the budget ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__.__mro__",
        "x._hidden",
        "x['__class__']",
        "(x | attr('__class__'))",
        "namespace.__init__.__globals__",
        "range.__globals__",
        "dict.__subclasses__()",
        "self.__init__.__globals__",
        "loop.__class__",
        "cycler.__init__.__globals__.os",
        "lipsum.__globals__",
        "x.append(1)",
        "x.clear()",
        "'{0.__class__}'.format(1)",
        "'{a.__class__}'.format_map({'a': 1})",
        "greedy.__globals__",
        "'a'.center(9)",
        "multinomial.__wrapped__",
    ],
)
def test_nothing_leads_out_of_the_sandbox(expression: str) -> None:
    source = f"{{% for i in [1] %}}{{{{ {expression} }}}}{{% endfor %}}"
    with pytest.raises(TemplateError) as caught:
        Template(source).run(MODEL, [{"x": [1]}])[0].check()
    assert "<class" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "limit"),
    [
        ("{% for i in range(10 ** 9) %}{% endfor %}", "steps"),
        ("{% for i in range(9999) %}\n{% for j in range(9999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% for i in range(9999) if i < 0 %}{% endfor %}{% for i in range(9999) if i < 0 %}{% endfor %}", "steps"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", None),
        ("{% for i in range(999) recursive %}{{ loop(range(999)) }}{% endfor %}", None),
        ("{{ 'a' * 10 ** 9 }}", "characters"),
        ("{{ [1] * 10 ** 9 }}", "characters"),
        ("{{ 10 ** 9999 }}", None),
        ("{{ ('a' * 9999).replace('a', 'b' * 9999) }}", "characters"),
        ("{{ ('a' * 9999) | replace('', 'b' * 9999) }}", "characters"),
        ("{{ ('b' * 9999).join('a' * 9999) }}", "characters"),
        ("{{ range(9999) | join('b' * 9999) }}", "characters"),
        ("{{ [1] | tojson(indent=10 ** 9) }}", None),
        ("{% set a = [1] %}" + "{% set a = [a, a] %}" * 40 + "{{ a }}", "characters"),
        ("{% set a = [1] %}" + "{% set a = [a, a] %}" * 40 + "{{ a == a }}", "characters"),
        ("{% set a = 'a' %}" + "{% set a = a ~ a %}" * 40, "characters"),
        ("{% set a = 9 %}" + "{% set a = a * a %}" * 40, None),
        ("{% set n = namespace(a='a') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}", "characters"),
        ("{% for i in range(9999) %}{{ i }}{{ 'a' * 999 }}{% endfor %}", "characters"),
        (">{% for i in range(9999) %}{{ gen(regex='[ab]{3}') }}{% endfor %}", "tokens"),
        (">{{ gen(regex='[ab]{90}', max_tokens=none) }}", "tokens"),
        (">{{ gen(max_tokens=90, min_tokens=90) }}", "tokens"),
        (">{{ gen(sampler=best_of(10 ** 5)) }}", "forks"),
        (">{{ gen(sampler=beam_search(65)) }}", "forks"),
    ],
)
def test_whatever_does_not_end_meets_its_budget(source: str, limit: str | None) -> None:
    budget = TemplateBudget(steps=10_000, characters=100_000, tokens=50)
    with pytest.raises(BudgetError if limit is not None else (BudgetError, TemplateError)) as caught:
        Template(source).run(MODEL, budget=budget)
    error = caught.value
    assert str(error).startswith(f"line {error.line}")
    if isinstance(error, BudgetError):
        assert isinstance(error, BudgetError)
        assert error.limit == type(error).limit
        assert error.limit == limit or limit is None
        assert f"`TemplateBudget({error.limit}=)`" in str(error)


def test_text_counts_as_tokens_too() -> None:
    for source in (">{% for i in range(40) %}ab {% endfor %}", ">{{ gen(regex='a') }}{% for i in range(40) %}ab {% endfor %}"):
        with pytest.raises(BudgetError) as caught:
            Template(source).run(MODEL, budget=TemplateBudget(tokens=50))
        assert (caught.value.limit, caught.value.line) == ("tokens", None)
        assert str(caught.value).startswith("the template: ")


def test_a_budget_that_is_just_enough_is_no_error() -> None:
    template = Template(">{{ gen('a', regex='[ab]{3}', end='eos', max_tokens=none) }}")
    result = template.run(MODEL)
    assert result.state is not None
    used = result.state.shape[2]
    assert template.run(MODEL, budget=TemplateBudget(tokens=used)).text == result.text
    with pytest.raises(BudgetError) as caught:
        template.run(MODEL, budget=TemplateBudget(tokens=used - 1))
    assert (caught.value.limit, caught.value.allowed, caught.value.line) == ("tokens", used - 1, 1)


def test_the_clock_ends_a_row_in_the_middle_of_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    said, forwards = saying("a" * 200), [0.0]

    def script(ids: list[int]) -> dict[int, float]:
        forwards[0] += 1
        return said(ids)

    model = scripted_model(script)
    template = Template(">{{ gen('a', max_tokens=150) }}{{ gen('b', max_tokens=150) }}")
    template.run(model)  # probes the model
    monkeypatch.setattr(TemplateUsage.__init__, "__defaults__", (lambda: forwards[0],))
    for one in (template, Template(">{{ gen('a', max_tokens=150) }}")):
        result = one.run(model, [{}], budget=TemplateBudget(seconds=20))[0]
        assert isinstance(result.error, BudgetError)
        assert result.error.limit == "seconds"
        assert set(result.text) == {">", "a"}
        assert 15 < len(result.text) < 23


def test_templates_and_controllers_have_one_budget() -> None:
    assert TemplateBudget is Budget
    with pytest.raises(OptionError, match="`kv_bytes`"):
        Template(">{{ gen() }}").run(MODEL, budget=Budget(kv_bytes=1 << 20))


def test_none_is_no_limit() -> None:
    free = TemplateBudget(tokens=None, steps=None, characters=None, seconds=None)
    source = "{% for i in range(100100) %}{% if i > 100098 %}{{ i }}{{ gen('a', regex='[ab]') }}{% endif %}{% endfor %}"
    assert Template(source).run(MODEL, budget=free).text[:6] == "100099"
    with pytest.raises(BudgetError, match="100,000 steps"):
        Template(source).run(MODEL)


@pytest.mark.parametrize(("text", "old", "new"), [("a" * 10, "a", "b" * 5), ("a" * 9, "aaa", "b"), ("abc", "", "xyz")])
def test_what_a_replacement_costs_is_known_before(text: str, old: str, new: str) -> None:
    assert len(text.replace(old, new)) <= _replace_cost(text, old, new) <= (len(text) + 1) * (len(new) + 1)


# -- special tokens ----------------------------------------------------------------------------------------------------


def _ids(source: str, special: bool = False, **values: Any) -> list[int]:
    state = Template(source, special=special).run(MODEL, **values).state
    assert state is not None
    ids: list[int] = state.token_ids[0, 0].tolist()
    return ids


def test_special_tokens_in_values_are_letters_and_do_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert END_OF_TURN not in _ids("a {{ text }} b", text="<end>")
        assert END_OF_TURN not in _ids("a {{ text }} b", special=True, text="<end>")
        assert END_OF_TURN not in _ids("a <en{{ text }} b", special=True, text="d>")
        assert END_OF_TURN not in _ids("a {% set x %}<en{{ text }}{% endset %}{{ x }}", special=True, text="d>")
        assert _ids("a {{ text }} b<end>", special=True, text="<end>").count(END_OF_TURN) == 1


def test_special_tokens_of_the_author_are_said_to_be_such() -> None:
    expected = [*MODEL.tokenizer.encode("", add_special_tokens=True), *MODEL.tokenizer.encode_special("a b<end>c")]
    assert expected.count(END_OF_TURN) == 1
    assert _ids("a {{ text }}<end>c", special=True, text="b") == expected
    assert _ids("a {{ text }}{{ '<end>' | special }}c", text="b") == expected
    assert _ids("{% macro m(x) %}a {{ x }}<end>{% endmacro %}{{ m(text) }}c", special=True, text="b") == expected
    assert _ids("{{ ('a b' ~ ('<end>' | special)) ~ text }}", text="c") == expected
    with pytest.warns(SpecialTokenWarning, match=r"write \{\{ '<end>' \| special \}\}"):
        assert END_OF_TURN not in _ids("a b<end>c")
    with pytest.warns(SpecialTokenWarning):
        assert END_OF_TURN not in _ids("a b{{ '<end>' }}c")
    assert "expected a text before `special`" in str(refused("{{ 3 | special }}"))


def test_special_tokens_between_generators_are_those_of_a_state() -> None:
    result = Template(">{{ gen('a', regex='[ab]') }}<end>x{{ gen('b', regex='[ab]') }}", special=True).run(MODEL)
    one = continuous(generate.regex(MODEL, "[ab]"))
    assert result.state == one(one(">") + Tokens.of("<end>x", special=True))


def test_every_function_that_is_rewritten_generates() -> None:
    assert KINDS.keys() == GENERATING
