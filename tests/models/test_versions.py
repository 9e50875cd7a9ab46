"""Versions of transformers and torch: the name of the cache in a forward, and what errors say of versions that were not tested."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import transformers
from packaging.requirements import Requirement

from outlines_cont import continuous, generate, models
from outlines_cont.errors import UnsupportedModel
from outlines_cont.models import versions
from tests.fakes import FakeTokenizer, random_network

ROOT = Path(__file__).parents[2]


class _Network(transformers.LlamaForCausalLM):
    def _run(self, cache: Any, **options: Any) -> Any:
        name = "cache" if _IS_CACHE else "past_key_values"
        return transformers.LlamaForCausalLM.forward(self, **{name: cache}, **options)


_IS_CACHE = "cache" in transformers.modeling_outputs.CausalLMOutputWithPast.__dataclass_fields__


class _Past(_Network):
    def forward(
        self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None, past_key_values: Any = None, **more: Any
    ) -> Any:
        return self._run(past_key_values, input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **more)


class _Cache(_Network):
    def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None, cache: Any = None, **more: Any) -> Any:
        return self._run(cache, input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **more)


class _CacheParams(_Network):
    def forward(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None, cache_params: Any = None, **more: Any) -> Any:
        return self._run(cache_params, input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, **more)


class _Any(_Network):
    def forward(self, input_ids: Any, **options: Any) -> Any:
        return transformers.LlamaForCausalLM.forward(self, input_ids, **options)


class _None(_Network):
    def forward(self, input_ids: Any, attention_mask: Any = None, use_cache: bool = True) -> Any:
        return self._run(None, input_ids=input_ids, attention_mask=attention_mask)


def _network(kind: Callable[[Any], Any]) -> Any:
    plain = random_network("llama")
    network = kind(plain.config)
    network.load_state_dict(plain.state_dict())
    return network.to(plain.dtype).eval()


@pytest.mark.parametrize("kind", [_Past, _Cache, _CacheParams, _Any])
def test_a_cache_is_given_by_the_name_that_the_forward_has(kind: Callable[[Any], Any]) -> None:
    wanted = continuous(generate.text(models.from_transformers(random_network("llama"), FakeTokenizer())))("the name of", max_tokens=6)
    model = models.from_transformers(_network(kind), FakeTokenizer())
    with model.meter() as meter:
        found = continuous(generate.text(model))("the name of", max_tokens=6)
    assert wanted.token_ids.tolist() == found.token_ids.tolist()
    assert meter.fed_tokens < found.shape[2]  # nothing is fed twice


def test_a_forward_without_a_cache_is_refused_by_what_it_takes() -> None:
    with pytest.raises(UnsupportedModel, match="as `past_key_values`, `cache`, `cache_params`, got _None, whose forward takes `input_ids`"):
        models.from_transformers(_network(_None), FakeTokenizer())


def test_an_error_names_a_version_that_was_not_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not tested" not in versions.untested()
    monkeypatch.setattr(versions, "NEWEST_TESTED", {"transformers": (5, 1), "torch": (99, 0)})
    said = versions.untested()
    assert f"Installed is transformers {version('transformers')}, which was not tested" in said
    assert "the newest tested is transformers 5.1." in said
    with pytest.raises(UnsupportedModel, match="which was not tested and may be the cause"):
        models.from_transformers(_network(_None), FakeTokenizer())


def test_an_import_that_fails_names_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> Any:
        raise ImportError(f"cannot import name 'DynamicSlidingWindowLayer' for {name}")

    monkeypatch.setattr(versions, "NEWEST_TESTED", {"transformers": (5, 1)})
    monkeypatch.setattr(models, "import_module", gone)
    with pytest.raises(ImportError, match="DynamicSlidingWindowLayer") as caught:
        _ = models.transformers
    assert "the newest tested is transformers 5.1." in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("tested", "installed", "is_newer"),
    [((5, 9), "5.24.0", True), ((5, 24), "5.9.1", False), ((2, 13), "2.13.0+cpu", False), ((5, 24), "6.0.0rc1", True)],
)
def test_versions_are_compared_as_numbers(tested: tuple[int, int], installed: str, is_newer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "NEWEST_TESTED", {"transformers": tested})
    monkeypatch.setattr(versions, "version", lambda _: installed)
    assert is_newer == bool(versions.untested())


def test_the_page_has_the_bounds_that_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    page = (ROOT / "docs" / "versions.md").read_text()
    for text in declared:
        requirement = Requirement(text)
        (lowest,) = [specifier.version for specifier in requirement.specifier if specifier.operator == ">="]
        assert f"| `{requirement.name}` | {lowest} |" in page
