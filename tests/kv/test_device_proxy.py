"""The limits of a step on a GPU (`benchmarks.device_proxy`), counted without one; and what the proxy counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from benchmarks.device_proxy import CASES, Proxy, Rig, paged_kernel
from outlines_cont.kv.paged import cache
from outlines_cont.models import hugging_face
from tests.page_server import PageServer

PROGRAM = """
import json
from dataclasses import asdict
from pathlib import Path
from benchmarks.device_proxy import CASES, measure

figures = {
    "all": measure([*CASES], (1, 2)),
    "many slices": measure(["slices"], (2,), rows=64),
    "slots": measure(["text", "slices"], (2, 3), rows=4, is_paged=True),
}
Path("figures.json").write_text(json.dumps({name: {case: asdict(one) for case, one in found.items()} for name, found in figures.items()}))
"""


@pytest.fixture(scope="module")
def figures(page_server: PageServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All figures, of a process of its own: what a model is found capable of is kept by the process."""
    script = tmp_path_factory.mktemp("proxy") / "measure.py"
    script.write_text(PROGRAM)
    code, _, err = page_server.run(script)
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(script.with_name("figures.json").read_text())
    return found


@pytest.fixture(scope="module")
def measured(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures of all cases."""
    return figures["all"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_a_step_asks_no_more_of_the_device_than_its_limits(measured: dict[str, Any], name: str) -> None:
    figures = measured[name]["figures"]
    assert {key: figures[key] for key, most in CASES[name].limits.items() if figures[key] > most} == {}


@pytest.mark.parametrize("name", CASES)
def test_the_operators_outside_of_the_forward_do_not_grow_with_the_layers(measured: dict[str, Any], name: str) -> None:
    shallow, deep = measured[name]["outside_at"].values()
    assert shallow == deep


def test_the_limits_hold_where_layers_are_in_several_tensors(figures: dict[str, Any]) -> None:
    found = figures["many slices"]["slices"]
    limits = {key: most for key, most in CASES["slices"].limits.items() if key != "per_layer"}
    assert {key: found["figures"][key] for key, most in limits.items() if found["figures"][key] > most} == {}
    assert found["names"]["index"] > 1, "so that keys and values were in several tensors"


def test_a_step_over_slots_is_one_graph_and_few_operators_and_slices_move_nothing(figures: dict[str, Any]) -> None:
    limits = {"per_layer": 0, "rest": 6, "outside": 10, "syncs": 1, "uploads": 0, "stalls": 1, "plans": 0}
    for case in figures["slots"].values():
        assert {key: case["figures"][key] for key, most in limits.items() if case["figures"][key] > most} == {}
        assert case["names"]["graph"] == 1


@pytest.mark.parametrize("is_right", [True, False])
def test_a_pool_is_used_if_its_logits_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch, is_right: bool) -> None:
    monkeypatch.setattr(hugging_face, "has_kernel", lambda dtype, size: True)
    with Proxy() as proxy, paged_kernel(proxy), monkeypatch.context() as patch:
        if not is_right:
            patch.setattr(cache, "paged_attend", lambda query, *given, **options: query)
        rig = Rig(proxy, 2, paged=True)
        assert (rig.model.kv_store.paging is not None) is is_right
        assert (rig.model._graphs is not None) is is_right


def test_the_proxy_computes_what_the_host_does_and_counts_operators() -> None:
    with torch.inference_mode(), Proxy() as proxy:
        weights = proxy.place(torch.arange(12.0).view(3, 4))
        assert weights.device.type == "cuda"
        doubled = weights[1:].t() * 2  # two views, one kernel
        assert doubled.device.type == "cuda"
        assert proxy.steps[-1].names == {"mul": 1}
        assert doubled.tolist() == [[8.0, 16.0], [10.0, 18.0], [12.0, 20.0], [14.0, 22.0]]
        assert (proxy.steps[-1].syncs, proxy.steps[-1].stalls) == (1, 1)


def test_the_proxy_counts_uploads_that_block_alone() -> None:
    with torch.inference_mode(), Proxy() as proxy:
        host = torch.ones(3)
        device = torch.device("cuda:0")
        assert host.to(device).device == device
        assert proxy.steps[-1].uploads == 1
        host.to(device, non_blocking=True)
        assert proxy.steps[-1].uploads == 2, "memory that is not pinned"
        host.pin_memory().to(device, non_blocking=True)
        assert proxy.steps[-1].uploads == 2
        torch.tensor([1.0], device=device)
        proxy.place(torch.ones(2))[[0, 1]]
        assert proxy.steps[-1].uploads == 4, "of a list of Python, and of its indices"


def test_the_proxy_refuses_what_a_device_would() -> None:
    with torch.inference_mode(), Proxy() as proxy:
        there = proxy.place(torch.ones(3))
        with pytest.raises(RuntimeError, match="a host tensor"):
            there + torch.ones(3)
        with pytest.raises(TypeError):
            there.numpy()


def test_attention_that_pytorch_would_give_to_cudnn_makes_a_plan_for_each_length() -> None:
    query, key = (torch.randn(1, 2, n, 16, dtype=torch.bfloat16) for n in (1, 9))
    with torch.inference_mode(), Proxy() as proxy:
        for one in (query, key):
            proxy.place(one)
        for length in (4, 4, 5):
            torch.nn.functional.scaled_dot_product_attention(query, key[:, :, :length], key[:, :, :length])
        assert proxy.steps[-1].plans == 2
