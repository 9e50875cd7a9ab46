"""Images inside of templates: a run is the state and the text of `model.see` and calls by hand, and no image is lost in silence."""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from outlines_cont import Template, TemplateBudget, continuous, generate, models, samplers
from outlines_cont.errors import ImageError, SpecialTokenWarning, TemplateError, TokenBudgetError, UnsupportedModel
from tests.image_models import image_model, parts, picture
from tests.images.oracle import evict_all, worst_error

_EXACT = 1e-4
_DRAWN = samplers.multinomial()


def _scan(seed: int = 1) -> Any:
    return Image.fromarray(picture(seed))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "idefics3"])
def test_a_run_is_the_chain_that_is_written_by_hand(family: str) -> None:
    model = image_model(family)
    source = "Read: {{ a }}\nTotal: {{ gen('t', regex='[0-9]{3}') }} {{ b }}{{ gen('x', max_tokens=4, min_tokens=4) }}"
    with model.meter() as meter:
        result = Template(source).run(model, a=_scan(1), b=_scan(2), sampler=_DRAWN, rng=5)
    assert meter.images == 2
    by_hand = model.see("Read: <image>\nTotal: ", [picture(1)], rng=5)
    by_hand = continuous(generate.regex(model, "[0-9]{3}", sampler=_DRAWN))(by_hand).see(" <image>", [picture(2)])
    by_hand = continuous(generate.text(model, sampler=_DRAWN))(by_hand, max_tokens=4, min_tokens=4)
    assert result.state == by_hand
    assert [span.digest for span in result.state.rows[0][0].images] == [span.digest for span in by_hand.rows[0][0].images]
    assert worst_error(model, result.state) < _EXACT
    assert str(result) == str(by_hand)
    assert by_hand.generated == f"{result.captures['t']} <image>{result.captures['x']}"


def test_rows_searches_and_streams_see_their_own_image() -> None:
    model = image_model("qwen2_5_vl")
    template = Template("Is it {{ scan }}? {{ choice('c', ['red', 'green']) }}, {{ gen(max_tokens=3, min_tokens=3, sampler=by) }}")
    samplers_of = (samplers.beam_search(2), samplers.best_of(3), _DRAWN)
    rows = [{"scan": _scan(seed), "by": sampler} for seed in (1, 2) for sampler in samplers_of]
    results = template.run(model, rows, rng=[*range(6)])
    for row, seed, result in zip(rows, range(6), results, strict=True):
        alone = template.run(model, **row, rng=seed)
        assert result.check().state == alone.state
        assert worst_error(model, result.state) < _EXACT
    assert results[0].state.rows[0][0].images != results[3].state.rows[0][0].images
    stream = template.stream(model, **rows[2], rng=2)
    texts = [event.text for event in stream]
    assert "".join(texts) == str(results[2])
    assert "<image>" in texts
    forks = continuous(generate.text(model, sampler=_DRAWN))(results[2].state.fork(3), max_tokens=3, min_tokens=3)
    assert worst_error(model, forks) < _EXACT


def test_an_image_of_all_rows_is_read_and_seen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.from_transformers(*parts("llava"))
    read: list[int] = []
    own = model.read_image
    monkeypatch.setattr(type(model), "read_image", lambda self, image: read.append(1) or own(image))
    template = Template("{{ scan }} of {{ name }}: {{ gen(max_tokens=2, min_tokens=2) }}")
    with model.meter() as meter:
        results = template.run(model, [{"name": name} for name in "abcdef"], scan=_scan())
    assert (len(read), meter.images) == (1, 1)
    evict_all(model)
    with model.meter() as meter:
        again = template.run(model, [{"name": name} for name in "abcdef"], scan=_scan())
    assert meter.images <= 1
    assert [result.state for result in again] == [result.state for result in results]


def test_every_form_of_an_image_is_the_same_state(tmp_path: Path) -> None:
    model = image_model()
    path, file = tmp_path / "a.png", io.BytesIO()
    _scan().save(file, format="PNG")
    path.write_bytes(file.getvalue())
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    part = {"type": "image_url", "image_url": {"url": url}}
    written = [_scan(), picture(1), model.read_image(picture(1)), part, {"type": "image", "path": path}]
    filtered = [file.getvalue(), path, url, *written]
    states = [Template("A {{ one }}").run(model, one=one).state for one in written]
    states += [Template("A {{ one | image }}").run(model, one=one).state for one in filtered]
    states += [Template(source).run(model, one=_scan()).state for source in _SAME]
    assert len({*states}) == 1
    assert states[0] == model.see("A <image>", [picture(1)])


_SAME = [
    "{{ 'A ' ~ one }}",
    "{{ 'A ' + (one | image) }}",
    "{% set text %}A {{ one }}{% endset %}{{ text | image }}",
    "{% macro of(x) %}A {{ x }}{% endmacro %}{{ of(one) }}",
    "{% for x in [one] %}A {{ x }}{% endfor %}",
    "A {% filter special %}{{ one }}{% endfilter %}",
    "A {{ missing | default(one) }}".replace("missing", "row.missing"),
]


@pytest.mark.parametrize(
    "source",
    [
        "{{ [one, 'x'] | join }}",
        "{{ one | image | trim }}",
        "{{ one | string }}",
        "{{ (one | image)[:3] }}",
        "{{ (one | image) * 3 }}",
        "{{ ''.join([one | image]) }}",
        "{{ 'x'.replace('x', one | image) }}",
        "{% filter upper %}{{ one }}{% endfilter %}",
    ],
)
def test_an_image_is_not_lost_in_silence(source: str) -> None:
    with pytest.raises(TemplateError, match=r"line 1.*without images"):
        Template(source).run(image_model(), one=_scan())


def test_texts_open_no_files_and_a_template_calls_no_method_of_an_image(tmp_path: Path) -> None:
    model, path = image_model(), tmp_path / "a.png"
    _scan().save(path)
    for source in ("{{ name | image }}", "{{ {'type': 'image', 'image': name} }}", "{{ {'type': 'image', 'path': name} | image }}"):
        with pytest.raises(TemplateError, match="opens no file by its name"):
            Template(source).run(model, name=str(path))
    for source in ("{{ one.save(name) }}", "{{ ([one] | map(attribute='save') | first)(name) }}", "{{ one['show']() }}{{ name }}"):
        with pytest.raises(TemplateError):
            Template(source).run(model, one=_scan(), name=str(tmp_path / "b.png"))
    assert not (tmp_path / "b.png").exists()
    assert str(Template("{{ one.width }} x {{ one.height }}").run(model, one=_scan())) == "28 x 20"


def test_letters_are_no_image_and_dicts_are_texts() -> None:
    model = image_model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecialTokenWarning)
        result = Template("{{ text }} <image> {{ {'type': 'image', 'size': 2} }}").run(model, text="<image>")
    assert str(result) == "<image> <image> {'type': 'image', 'size': 2}"
    assert result.state.rows[0][0].images == ()
    with pytest.warns(SpecialTokenWarning, match="An image is a value"):
        Template("A <image>").run(model)


def test_what_cannot_be_seen_fails_in_its_line_and_its_row() -> None:
    model, template = image_model(), Template("Read:\n{{ scan | image }} {{ gen('x', max_tokens=1) }}")
    good, bad, missing = template.run(model, [{"scan": _scan()}, {"scan": b"none"}, {}])
    assert good.error is None
    assert isinstance(bad.error, ImageError)
    assert str(bad.error).startswith("line 2")
    assert "'scan' is undefined" in str(missing.error)
    with pytest.raises(UnsupportedModel, match=r"line 2.*takes no images"):
        template.run(models.tiny(), scan=_scan())


def test_the_tokens_of_an_image_count_when_it_is_written() -> None:
    read: list[int] = []
    model = image_model("qwen2_5_vl")
    endless = Template("A{% for i in range(10 ** 5) %}{{ scan }}{{ note(i) }}{% endfor %}")
    with pytest.raises(TokenBudgetError):
        endless.run(model, scan=_scan(), note=lambda i: str(read.append(i) or i), budget=TemplateBudget(tokens=55))
    assert len(read) == 5
