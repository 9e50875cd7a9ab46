"""What a test leaves changed is found and named, and what tests may change is not."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fsm
from outlines_cont import engine_of, generate
from outlines_cont.models import HuggingFaceModel
from outlines_cont.policies.constraint import KeptConstraints, vocabulary_of_model
from tests import leftovers
from tests.chat_models import chat_model
from tests.fakes import fresh_model, random_model

pytestmark = pytest.mark.skipif(not leftovers.IS_ON, reason="what tests leave changed is watched with TEST_LEFTOVERS=1")


@pytest.fixture
def model() -> HuggingFaceModel:
    leftovers.watch()
    model = fresh_model()
    generate.regex(model, "[0-9]")("a", max_tokens=1)
    return model


def _set(one: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch, Any], None]:
    """Set an attribute of what a function makes of the model."""
    return lambda patch, model: patch.setattr(one(model), name, value)


def _call(change: Callable[[], object]) -> Callable[[pytest.MonkeyPatch, Any], None]:
    return lambda patch, model: change() and None


@pytest.fixture
def _restored() -> Iterator[None]:
    """Put back what has no attribute to patch."""
    number, dtype, limit, handler = (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        sys.getrecursionlimit(),
        signal.getsignal(signal.SIGINT),
    )
    yield
    torch.set_num_threads(number)
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(False)
    sys.setrecursionlimit(limit)
    signal.signal(signal.SIGINT, handler)


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Any], None]] = {
    "os.environ SOME_NAME: nothing is now 'x'": lambda patch, model: patch.setenv("SOME_NAME", "x"),
    "os.environ HF_HUB_OFFLINE: '1' is now nothing": lambda patch, model: patch.delenv("HF_HUB_OFFLINE"),
    "process current folder": lambda patch, model: patch.chdir("/"),
    "process sys.path": lambda patch, model: patch.syspath_prepend("/nowhere"),
    "process recursion limit": _call(lambda: sys.setrecursionlimit(3_333)),
    "process SIGINT": _call(lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)),
    "torch default dtype: torch.float32 is now torch.float64": _call(lambda: torch.set_default_dtype(torch.float64)),
    "torch number of threads": _call(lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    "torch deterministic algorithms": _call(lambda: torch.use_deterministic_algorithms(True)),
    "HuggingFaceModel prefix_cache.max_bytes: 0 is now 5": _set(lambda model: model.prefix_cache, "max_bytes", 5),
    "HuggingFaceModel prefix_cache.min_tokens": _set(lambda model: model.prefix_cache, "min_tokens", 5),
    "HuggingFaceModel kv_store.budget_bytes: None is now 5": _set(lambda model: model.kv_store, "budget_bytes", 5),
    "HuggingFaceModel pixels.max_bytes": _set(lambda model: model.pixels, "max_bytes", 5),
    "HuggingFaceModel engine.max_rows": _set(engine_of, "max_rows", 5),
    "HuggingFaceModel engine.max_batch_tokens": _set(engine_of, "max_batch_tokens", 999),
    "HuggingFaceModel constraints.max_bytes": _set(KeptConstraints.of, "max_bytes", 5),
    "HuggingFaceModel vocabulary.masks.max_bytes": _set(lambda model: vocabulary_of_model(model).masks, "max_bytes", 5),
    "HuggingFaceModel hugging_face.training: False is now True": lambda patch, model: patch.setattr(model.hugging_face, "training", True),
    "Tokenizer hugging_face.chat_template": _set(lambda _: chat_model("Qwen3").tokenizer.hugging_face, "chat_template", "x"),  # type: ignore[attr-defined]
}


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("expected", CHANGES)
def test_what_a_test_leaves_changed_is_named(expected: str, model: HuggingFaceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    leftovers.watch()
    if "chat_template" in expected:
        chat_model("Qwen3")
    before = leftovers.settings()
    CHANGES[expected](monkeypatch, model)
    found = leftovers.changes(before, leftovers.settings())
    assert found
    assert all(line.startswith(expected) for line in found), found


def test_what_is_replaced_in_a_module_a_class_or_a_model_is_named(model: HuggingFaceModel, monkeypatch: pytest.MonkeyPatch) -> None:
    before = leftovers.definitions()
    monkeypatch.setattr("outlines_cont.policies.slow_work.MAX_STEP_WORK", 5)
    monkeypatch.setattr(fsm.TokenFSM, "bitmask", lambda self, state: None)
    monkeypatch.setattr(model, "forward", print)
    monkeypatch.setattr(vocabulary_of_model(model), "max_exits", 5)
    found = leftovers.changes(before, leftovers.definitions())
    for name in (
        "outlines_cont.policies.slow_work MAX_STEP_WORK",
        "TokenFSM bitmask",
        "HuggingFaceModel in use own",
        "Vocabulary in use own",
    ):
        assert [line for line in found if name in line], (name, found)
    monkeypatch.undo()
    assert leftovers.changes(before, leftovers.definitions()) == []


def test_what_tests_may_change_is_nothing(tmp_path: Path) -> None:
    model = random_model()
    before, defined = leftovers.settings(), leftovers.definitions()
    generate.regex(model, "[a-c]{3}")("the name", max_tokens=4)
    torch.rand(3)
    (tmp_path / "x").write_text("")
    other = fresh_model()
    other.prefix_cache.max_bytes = 9  # it came after
    assert leftovers.changes(before, leftovers.settings()) == leftovers.changes(defined, leftovers.definitions()) == []
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_what_has_a_model_may_change_its_limits_until_it_gives_it_back(model: HuggingFaceModel) -> None:
    before = leftovers.settings()
    leftovers.lend(model)
    model.prefix_cache.max_bytes = 9
    assert leftovers.changes(before, leftovers.settings()) == []
    leftovers.take_back(model)
    assert leftovers.changes(before, leftovers.settings()) == ["HuggingFaceModel prefix_cache.max_bytes: 0 is now 9"]
