"""Products by oneDNN: those of MKL, and the logits of transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont.kv.batch import KVBatch
from outlines_cont.models import from_transformers, product
from outlines_cont.models.product import Product
from tests.fakes import FakeTokenizer
from tests.models.test_fused import random_network


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply by oneDNN on every processor, whatever the size."""
    monkeypatch.setattr(product, "prefers_onednn", lambda: True)
    monkeypatch.setattr(product, "_MANY", 0)
    monkeypatch.setattr(product, "_LARGE", 0)


@given(st.tuples(*[st.integers(1, 40)] * 3), st.booleans(), st.booleans(), st.floats(-2, 2), st.integers(0, 99))
def test_both_libraries_have_the_same_products(
    sizes: tuple[int, int, int], has_bias: bool, is_transposed: bool, scale: float, seed: int
) -> None:
    num_tokens, inputs, outputs = sizes
    source = torch.Generator().manual_seed(seed)
    weight = torch.randn((inputs, outputs), generator=source)
    bias = torch.randn(outputs, generator=source) if has_bias else None
    given_weight = weight if is_transposed else weight.t().contiguous().t()
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        patch.setattr(product, "prefers_onednn", lambda: True)
        patch.setattr(product, "_MANY", 0)
        patch.setattr(product, "_LARGE", 0)
        ours = Product(given_weight, bias)
        assert ours.many <= 1
        inner = torch.randn((num_tokens, inputs), generator=source)
        x = torch.randn((num_tokens, outputs), generator=source)
        plain = inner @ weight + (0 if bias is None else bias)
        torch.testing.assert_close(ours(inner), plain, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.add_to(x.clone(), inner, scale), x + scale * plain, rtol=1e-5, atol=1e-4)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("family", ["llama", "llama with biases", "qwen3", "granite", "gpt2"])
def test_a_network_has_the_logits_of_transformers_and_sees_edited_weights(family: str) -> None:
    network = random_network(family)
    model = from_transformers(network, FakeTokenizer(), prefix_cache_bytes=0)
    assert model.capabilities.fused, model.capabilities.fused.why
    ids = list(range(3, 20))
    for factor in (1.0, 0.5):
        with torch.no_grad():
            for weight in network.parameters():
                weight.mul_(factor)
        found = KVBatch(model, [None]).feed([ids], [list(range(len(ids)))]).logits[0]
        with torch.inference_mode():
            expected = network(input_ids=torch.tensor([ids])).logits[0]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


def test_small_products_and_other_types_are_left_to_mkl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "prefers_onednn", lambda: True)
    called: list[int] = []

    def noted(x: torch.Tensor, rows: torch.Tensor, _: object) -> torch.Tensor:
        called.append(len(x))
        return x @ rows.t()

    monkeypatch.setattr(product, "_by_onednn", noted)
    small, large = Product(torch.zeros(64, 64), None), Product(torch.zeros(1024, 1024), None)
    for num_tokens in (1, 3, 4, 1200):
        small(torch.zeros(num_tokens, 64))
        large(torch.zeros(num_tokens, 1024))
    assert called == [4, 1200, 1200]
    assert Product(torch.zeros(64, 64, dtype=torch.bfloat16), None).many == sys.maxsize


@pytest.mark.parametrize(("vendor", "expected"), [("AuthenticAMD", True), ("GenuineIntel", False)])
def test_the_choice_depends_on_the_vendor(vendor: str, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n", encoding="utf-8")
    monkeypatch.setattr(product, "_CPU_INFO", info)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert expected == product.prefers_onednn.__wrapped__()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not product.prefers_onednn.__wrapped__()


def test_without_a_description_of_the_processor_mkl_multiplies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(product, "_CPU_INFO", tmp_path / "none")
    assert not product.prefers_onednn.__wrapped__()
