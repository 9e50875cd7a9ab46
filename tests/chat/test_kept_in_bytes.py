"""What is kept of templates, generators and warnings is bounded by bytes, whatever texts come; conversations are made in linear time."""

from __future__ import annotations

import random
import warnings
from functools import partial
from typing import Any

import pytest

from fsm.tokens.cache import ByteCache
from outlines_cont import Chat, generate, models
from outlines_cont.chats import template as chat_template
from outlines_cont.chats.template import ChatTemplate, names_read
from outlines_cont.errors import ChatError
from outlines_cont.generation import options
from outlines_cont.generation.thinking import head_of, template_marks
from outlines_cont.pipelines import prompt_template
from outlines_cont.pipelines.prompt_template import PromptTemplate
from outlines_cont.policies.constraint import KeptConstraints
from tests.examples import first
from tests.fakes import fresh_model

_TEMPLATE = "{%- for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, ByteCache[Any, Any]]:
    """Caches of templates for about ten of them."""
    made = {"_COMPILED": ByteCache[Any, Any](60_000), "_NAMES": ByteCache[Any, Any](60_000), "rows": ByteCache[Any, Any](60_000)}
    monkeypatch.setattr(chat_template, "_COMPILED", made["_COMPILED"])
    monkeypatch.setattr(chat_template, "_NAMES", made["_NAMES"])
    monkeypatch.setattr(prompt_template, "_COMPILED", made["rows"])
    return made


def test_templates_are_kept_by_their_bytes(small: dict[str, ByteCache[Any, Any]]) -> None:
    model = models.tiny()
    for number in range(40):
        source = f"{_TEMPLATE}{{# {number} #}}"
        chat = Chat(model, template=source).user("Hello")
        assert str(chat.state) == "<user>Hello<assistant>"
        assert names_read(source) == frozenset()
        row = PromptTemplate(f"{number} {{{{ text }}}}")
        assert row.names == {"text"}
        assert all(cache.nbytes <= cache.max_bytes for cache in small.values())
    assert all(2 < len(cache) < 40 for cache in small.values())
    assert chat_template._compiled(source) is chat_template._compiled(source)
    assert prompt_template._compiled("a") is prompt_template._compiled("a")


def test_a_large_template_takes_the_place_of_many_small_ones(small: dict[str, ByteCache[Any, Any]]) -> None:
    for number in range(8):
        names_read(f"{{{{ x{number} }}}}")
    names_read("{{ y }}" + "a" * 50_000)
    assert (len(small["_NAMES"]), small["_NAMES"].nbytes <= 60_000) == (1, True)


def test_facts_about_templates_are_kept_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_FACTS_BYTES", 5_000)
    model = models.tiny()
    for number in range(30):
        template = ChatTemplate(model, f"{_TEMPLATE}{{# {number} #}}")
        facts = (template.has_system, template_marks(template), head_of(template))
        assert facts == (template.has_system, template_marks(template), head_of(template)) == (True, None, "")
        kept: ByteCache[Any, Any] = model.memo["template_facts"]
        assert kept.nbytes <= 5_000
    assert 2 < len(kept) < 30


def test_generators_are_kept_by_their_bytes() -> None:
    model = fresh_model()
    KeptConstraints.of(model).max_bytes = 200_000
    first = generate.made_once(model, partial(generate.regex, pattern="a0"))
    for number in range(60):
        listed = [f"{number} {i}" for i in range(random.Random(number).randrange(90))]
        made = generate.made_once(model, partial(generate.choice, options=[*listed, "a"]))
        often = partial(generate.regex, pattern="b")
        assert generate.made_once(model, often) is generate.made_once(model, often)
        known = model.memo["generators"]
        assert sum(one.nbytes for one in known.values()) <= 200_000
        assert made in known.values()
    assert 2 < len(known) < 60
    assert first not in known.values()
    large = generate.made_once(model, partial(generate.choice, options=[f"{i}" for i in range(9_000)]))
    assert large.nbytes > 200_000
    assert [*known.values()] == [large]


def test_warnings_are_kept_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "_WARNED_BYTES", 3_000)
    model = models.tiny()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number in range(50):
            for _ in range(2):
                options.warn_of_lengths(model, f"schema {number}", [("#", "maxLength")], 5)
    assert 50 <= len(told) < 60  # what was used just before is kept in its place now and then
    assert model.memo["warned_lengths"].nbytes <= 3_000


@pytest.mark.parametrize("seed", first(3, range(6)))
def test_messages_that_are_added_together_are_those_added_one_by_one(seed: int) -> None:
    rng, model = random.Random(seed), models.tiny()
    messages = [{"role": rng.choice(["user", "assistant", "system"]), "content": rng.choice(["Hi", "", "Rain?"])} for _ in range(9)]
    one = Chat(model, rng=seed)
    for message in messages:
        one = one.message(message)
    cut = rng.randrange(9)
    both = Chat(model, rng=seed).add(messages[:cut]).add(iter(messages[cut:]))
    assert both.messages == one.messages == messages
    assert len(Chat(model).add([])) == 0
    wrong = [*messages, {"role": "user", "content": 3}]
    with pytest.raises(ChatError, match="expected a text as the content"):
        Chat(model).add(wrong)


def test_many_messages_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in copies, not in seconds."""
    copies: list[int] = []
    copy_with = Chat._copy_with
    monkeypatch.setattr(Chat, "_copy_with", lambda self, **changes: copies.append(1) or copy_with(self, **changes))
    chat = Chat(models.tiny()).add({"role": "user", "content": str(i)} for i in range(3_000))
    assert (len(chat), copies) == (3_000, [1])
