"""The prefix cache: what is fed, that nothing else changes, and when nothing is reused."""

from __future__ import annotations

import copy
import gc
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from outlines_cont import BatchedExecutor, SequenceState, continuous, engine_of, generate, models, samplers
from outlines_cont.engine.job import Job
from outlines_cont.engine.row import RowStatus
from outlines_cont.errors import KVBudgetError, UnsupportedModel
from outlines_cont.kv.share import Sharing
from outlines_cont.models import HuggingFaceModel
from outlines_cont.models.hugging_face import default_prefix_cache_bytes
from tests import rows
from tests.examples import first
from tests.fakes import FakeTokenizer, random_network, recurrent_network
from tests.oracle import assert_close, greedy_ids, next_logits

SYSTEM = "the name of the rose is red and the age of it is 12, in a land of the old, "
PLENTY = 2**24
PER_TOKEN = 2 * 2 * 2 * 8 * 8


def opened(family: str = "llama", *, prefix_cache_bytes: int = PLENTY, **options: Any) -> HuggingFaceModel:
    """A model of its own, where few tokens are worth reusing."""
    model = models.from_transformers(random_network(family), FakeTokenizer(), prefix_cache_bytes=prefix_cache_bytes, **options)
    model.prefix_cache.min_tokens = 8
    return model


def num_ids(text: str) -> int:
    return len(FakeTokenizer().encode(text, add_special_tokens=True))


def ids_of(state: SequenceState) -> list[list[int]]:
    return [[*row.token_ids] for group in state.rows for row in group]


def assert_is_fresh(model: HuggingFaceModel, state: SequenceState, max_tokens: int) -> None:
    """Every row is what the plain loop writes, and its keys and values lead to the logits of a fresh run."""
    for group in state.rows:
        for row in group:
            assert row.piece is not None
            start = row.piece.start
            wanted = greedy_ids(model, row.token_ids[:start], max_tokens)
            assert wanted == [*row.token_ids[start:]]
    again = continuous(generate.text(model, sampler=samplers.greedy()))(state, max_tokens=1)
    for group in again.rows:
        for row in group:
            logprobs = next_logits(model, row.token_ids).log_softmax(-1)
            scored = [float(logprobs[i - 1, token_id]) for i, token_id in enumerate(row.token_ids) if i]
            assert row.piece is not None
            written = row.logprobs[row.piece.start :]
            assert_close(torch.tensor(scored[row.piece.start - 1 :]), torch.tensor(written), 1e-9)


# -- what is fed ---------------------------------------------------------------------------------------------------------


def test_equal_prompts_of_one_call_are_fed_once() -> None:
    model = opened()
    with model.meter() as meter:
        state = continuous(generate.text(model))([SYSTEM] * 4, max_tokens=1)
    assert num_ids(SYSTEM) + 3 == meter.fed_tokens
    assert 3 * (num_ids(SYSTEM) - 1) == meter.reused_tokens == model.prefix_cache.reused_tokens
    assert (meter.recomputed_tokens, model.prefix_cache.hits) == (0, 3)
    assert_is_fresh(model, state, 1)
    first, *others = (row.kv for (row,) in state.rows)
    assert first is not None
    assert not any(other is None for other in others)


def test_a_second_call_feeds_the_last_token_of_the_prompt() -> None:
    model = opened()
    generate.text(model)(SYSTEM, max_tokens=3)
    with model.meter() as meter:
        state = continuous(generate.text(model))(SYSTEM, max_tokens=3)
    assert (1 + 2, num_ids(SYSTEM) - 1) == (meter.fed_tokens, meter.reused_tokens)
    assert_is_fresh(model, state, 3)


def test_a_prompt_that_goes_on_with_what_was_written_feeds_what_is_new() -> None:
    model = opened()
    first = continuous(generate.text(model))(SYSTEM, max_tokens=20)
    with model.meter() as meter:
        state = continuous(generate.text(model))(first.detach_cache() + " and more", max_tokens=2)
    total = len(ids_of(first)[0])
    assert total - 1 == meter.reused_tokens, "the last token was never fed"
    assert_is_fresh(model, state, 2)


def job_of(model: HuggingFaceModel, text: str, max_tokens: int = 6) -> Job:
    """One row of free text."""
    return rows.job_of(model, model.tokenizer.encode(text, add_special_tokens=True), max_tokens=max_tokens)


def submitted(model: HuggingFaceModel, texts: Sequence[str], max_tokens: int = 6) -> list[Job]:
    jobs = [job_of(model, text, max_tokens) for text in texts]
    for job in jobs:
        engine_of(model).submit(job)
    return jobs


def finished(model: HuggingFaceModel, jobs: Sequence[Job]) -> list[list[int]]:
    """What they write, after at most as many steps as a row takes alone and some more."""
    for _ in range(200):
        if all(job.is_over for job in jobs):
            break
        engine_of(model).step()
    assert all(job.is_over for job in jobs)
    for job in jobs:
        assert all(row.error is None for row in job.done.values()), job.done
    return [[*job.done[0].token_ids] for job in jobs]


def wanted(model: HuggingFaceModel, texts: Sequence[str], max_tokens: int = 6) -> list[list[int]]:
    prompts = [model.tokenizer.encode(text, add_special_tokens=True) for text in texts]
    return [ids + greedy_ids(model, ids, max_tokens) for ids in prompts]


@pytest.mark.parametrize("seed", first(2, range(3)))
def test_requests_that_share_a_prompt_and_come_at_random_feed_it_once(seed: int) -> None:
    numbers = random.Random(seed)
    texts = [SYSTEM + numbers.choice(["", "red is ", "a name: "]) + f"{number:02} " for number in range(12)]
    model = opened()
    jobs: list[Job] = []
    with model.meter() as meter:
        while len(jobs) < len(texts):
            count = numbers.choice([0, 0, 1, 4])
            jobs += submitted(model, texts[len(jobs) :][:count])
            engine_of(model).step()
        written = finished(model, jobs)
    assert wanted(model, texts) == written
    ended = sum(len(ids) - num_ids(text) for ids, text in zip(written, texts, strict=True))
    apart = sum(num_ids(text) - num_ids(SYSTEM) for text in texts)
    # The text behind the last token that is shared may be spelled otherwise.
    assert meter.fed_tokens <= num_ids(SYSTEM) + apart + ended + len(texts)
    assert meter.reused_tokens >= 11 * (num_ids(SYSTEM) - 1)
    assert meter.recomputed_tokens == 0


def test_prompts_that_share_a_beginning_of_their_own_wait_for_each_other_in_turn() -> None:
    """Two kinds of question below one system prompt: each part is fed once."""
    model = opened()
    kinds = ["of the green and the blue: ", "is it in the land of the old? "]
    texts = [SYSTEM + kind + str(number) for number in range(3) for kind in kinds]
    with model.meter() as meter:
        written = finished(model, submitted(model, texts, 1))
    assert wanted(model, texts, 1) == written
    least = num_ids(SYSTEM) + sum(num_ids(kind) for kind in kinds)
    assert least <= meter.fed_tokens <= least + 3 * len(texts)


def test_prompts_that_share_little_do_not_wait() -> None:
    model = opened()
    jobs = submitted(model, ["the name of it", "the name of the", SYSTEM], 2)
    engine_of(model).step()
    assert engine_of(model).num_running == 3
    finished(model, jobs)
    assert (model.prefix_cache.hits, model.prefix_cache.reused_tokens) == (0, 0)


# -- who is waited for ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cancelled", "fails", "raises"])
def test_when_the_row_that_is_waited_for_is_gone_the_others_go_on(how: str) -> None:
    model = opened()
    engine = engine_of(model)
    engine.max_batch_tokens = 20  # it is read in parts
    texts = [SYSTEM + "red", SYSTEM + "blue", SYSTEM + "green"]
    jobs = submitted(model, texts)
    engine.step()
    assert engine.num_running == 1, "the others wait"
    if how == "cancelled":
        engine.cancel(jobs[0])
    elif how == "fails":
        (row,) = jobs[0].rows
        row.fail(ValueError("no"))
    else:
        forward = model.forward

        def failing(*arguments: Any) -> torch.Tensor:
            if any(job_row.status is RowStatus.SAMPLING for job_row in jobs[0].rows):
                raise ValueError("no")
            return forward(*arguments)

        with mock.patch.object(model, "forward", failing):
            engine.step()
    written = finished(model, jobs[1:])
    assert wanted(model, texts[1:]) == written


def test_whoever_waits_keeps_its_place_in_the_line() -> None:
    model = opened()
    engine = engine_of(model)
    engine.max_rows, engine.max_batch_tokens = 2, 20
    jobs = submitted(model, [SYSTEM + "red", SYSTEM + "blue", *(f"{i} of the rest" for i in range(6))], 2)
    order = []
    while not all(job.is_over for job in jobs):
        engine.step()
        order += [i for i, job in enumerate(jobs) if job.is_over and i not in order]
    assert order[:2] == [0, 1]


# -- memory ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", first(3, [60, 130, 300, 90, 200]))
@pytest.mark.parametrize("min_view", [1, 1024])
def test_what_runs_within_a_budget_without_the_cache_runs_with_it(tokens: int, min_view: int) -> None:
    texts = [SYSTEM + "red", SYSTEM + "blue", "in " + SYSTEM, SYSTEM[:40], SYSTEM * 2]
    with mock.patch("outlines_cont.kv.batch.SHARING", Sharing(min_copies=min_view, min_view=min_view)):
        results = []
        for size in (0, PLENTY):
            model = opened(prefix_cache_bytes=size, kv_budget_bytes=tokens * PER_TOKEN)
            kept = continuous(generate.text(model))("the name", max_tokens=2)
            states = [continuous(generate.text(model))(text, max_tokens=3) for text in (*texts, texts[:3], kept)]
            results.append([(state.errors, ids_of(state)) for state in states])
            assert model.kv_store.nbytes <= tokens * PER_TOKEN
    for (errors, ids), (cached_errors, cached_ids) in zip(*results, strict=True):
        for row, cached_row in zip(errors, cached_errors, strict=True):
            for error, cached_error in zip(row, cached_row, strict=True):
                assert cached_error is None or isinstance(error, KVBudgetError)
        assert any(error for row in errors for error in row) or ids == cached_ids


# -- what is never reused --------------------------------------------------------------------------------------------------


def _step(network: Any) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
    network(input_ids=torch.tensor([[3, 4, 5]])).logits.sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def _load(network: Any) -> None:
    network.load_state_dict({name: weight * 0.9 for name, weight in network.state_dict().items()})


def _assign(network: Any) -> None:
    norm = network.model.layers[0].input_layernorm
    norm.weight = torch.nn.Parameter(norm.weight.detach() * 0.5)


def _replace(network: Any) -> None:
    layers = network.model.layers
    layers[0], layers[1] = layers[1], layers[0]


def _hook(network: Any) -> None:
    network.model.layers[0].mlp.register_forward_hook(lambda _module, _given, out: -out)


def _early_hook(network: Any) -> None:
    network.model.layers[0].mlp.register_forward_pre_hook(lambda _module, given: (2 * given[0],))


def _patch(network: Any) -> None:
    network.model.layers[0].mlp.forward = lambda x: -x


def _switch_off(network: Any) -> None:
    network.model.layers[0].mlp.down_proj._disable_adapters = True


def _choose(network: Any) -> None:
    network.model.layers[0].mlp.down_proj._active_adapter = ["other"]


def _rescale(network: Any) -> None:
    network.model.layers[0].mlp.down_proj.scaling["other"] = network.model.layers[0].mlp.down_proj.scaling["own"] = 3.0


class _Adapted(torch.nn.Module):
    """A product with two small ones beside it, one of which is added, as libraries of adapters have it."""

    def __init__(self, product: Any) -> None:
        super().__init__()
        self.product, self._disable_adapters, self._active_adapter = product, False, ["own"]
        self.scaling = {"own": 1.0, "other": -1.0}
        self.beside = torch.nn.ModuleDict({name: copy.deepcopy(product) for name in self.scaling})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (name,) = self._active_adapter
        return self.product(x) if self._disable_adapters else self.product(x) + self.scaling[name] * self.beside[name](x)


def adapted() -> HuggingFaceModel:
    """A model of its own with an adapter."""
    network = random_network("llama")
    network.model.layers[0].mlp.down_proj = _Adapted(network.model.layers[0].mlp.down_proj)
    model = models.from_transformers(network, FakeTokenizer(), prefix_cache_bytes=PLENTY)
    model.prefix_cache.min_tokens = 8
    return model


_CHANGES = [_step, _load, _assign, _replace, _hook, _early_hook, _patch, _switch_off, _choose, _rescale]


@pytest.mark.parametrize("change", _CHANGES)
def test_a_changed_network_is_noticed_and_states_of_before_leave_nothing_behind(change: Any) -> None:
    model = adapted() if change in (_switch_off, _choose, _rescale) else opened()
    old = continuous(generate.text(model))(SYSTEM, max_tokens=2)
    change(model.hugging_face)
    continuous(generate.text(model))(old + SYSTEM, max_tokens=2)
    with model.meter() as meter:
        state = continuous(generate.text(model))(SYSTEM, max_tokens=2)
    assert meter.reused_tokens == 0
    assert_is_fresh(model, state, 2)
    with model.meter() as meter:
        continuous(generate.text(model))(SYSTEM, max_tokens=2)
    assert meter.reused_tokens == num_ids(SYSTEM) - 1  # until the next change


@pytest.mark.filterwarnings("ignore")  # of what is imported
def test_adapters_of_peft_are_those_that_are_active() -> None:
    peft = pytest.importorskip("peft", reason="needs the package peft")
    wrapped = peft.get_peft_model(random_network("llama"), _lora(peft))
    wrapped.add_adapter("other", _lora(peft))
    model = models.from_transformers(wrapped.eval(), FakeTokenizer(), prefix_cache_bytes=PLENTY)
    assert model.hugging_face is wrapped.get_base_model()

    write, found = continuous(generate.text(model)), []
    for name in ("default", "other", "default"):
        wrapped.set_adapter(name)
        found += [(write(SYSTEM, max_tokens=1).logits[0, 0], _whole(model))]
    with wrapped.disable_adapter():
        found += [(write(SYSTEM, max_tokens=1).logits[0, 0], _whole(model))]
    for own, whole in found:
        assert_close(own.double(), whole.double(), 1e-5)
    assert not torch.allclose(found[0][1], found[1][1])
    assert not torch.allclose(found[0][1], found[3][1])


def _whole(model: HuggingFaceModel) -> torch.Tensor:
    """(V,) logits that the network itself has behind the prompt and its next token."""
    ids = torch.tensor([model.tokenizer.encode(SYSTEM, add_special_tokens=True)])
    with torch.no_grad():
        first = model.hugging_face(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)
        logits: torch.Tensor = model.hugging_face(input_ids=torch.cat([ids, first], 1), use_cache=False).logits[0, -1]
    return logits


def _lora(peft: Any) -> Any:
    options = {"r": 4, "lora_alpha": 64, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    return peft.LoraConfig(task_type="CAUSAL_LM", **options)


@pytest.mark.filterwarnings("ignore")  # of what is imported
def test_a_prompt_that_an_adapter_has_learned_is_refused() -> None:
    peft = pytest.importorskip("peft", reason="needs the package peft")
    learned = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    with pytest.raises(UnsupportedModel, match="inside of the layers.*'default', which learns a prompt"):
        models.from_transformers(peft.get_peft_model(random_network("llama"), learned), FakeTokenizer())


@pytest.mark.slow  # as torch imports its compiler
@pytest.mark.filterwarnings("ignore")  # of what is imported
def test_a_compiled_network_is_the_one_inside() -> None:
    network = random_network("llama")
    assert models.from_transformers(torch.compile(network), FakeTokenizer()).hugging_face is network


def test_a_network_that_several_devices_train_is_the_one_inside() -> None:
    network = random_network("llama")
    assert models.from_transformers(torch.nn.DataParallel(network), FakeTokenizer()).hugging_face is network


@pytest.mark.filterwarnings("ignore")  # of what torch calls deprecated
def test_a_network_that_torch_has_quantised_says_what_its_cache_can_do() -> None:
    network = random_network("llama", dtype=torch.float32)
    quantised = torch.ao.quantization.quantize_dynamic(network, {torch.nn.Linear}, dtype=torch.qint8)
    model = models.from_transformers(quantised, FakeTokenizer())
    assert "torch.ao.nn.quantized" in model.capabilities.fused.why
    assert not model.can_branch  # the scale of what enters a layer is one for all rows
    state = continuous(generate.text(model))(["the name", "a rose"], max_tokens=3, min_tokens=3)
    assert state.errors == [[None], [None]]
    assert state.shape[0] == 2


def test_weights_that_were_changed_unseen_are_told() -> None:
    model = opened()
    generate.text(model)(SYSTEM, max_tokens=2)
    for parameter in model.hugging_face.parameters():
        parameter.data.mul_(0.9)
    model.prefix_cache.clear()
    assert_is_fresh(model, continuous(generate.text(model))(SYSTEM, max_tokens=2), 2)


def test_a_row_that_runs_while_weights_change_is_not_shared() -> None:
    model = opened()
    jobs = submitted(model, [SYSTEM])
    engine_of(model).step()
    _load(model.hugging_face)
    jobs += submitted(model, [SYSTEM + "red"])
    assert wanted(model, [SYSTEM + "red"]) == finished(model, jobs)[1:]
    state = continuous(generate.text(model))(SYSTEM + "red", max_tokens=2)
    assert_is_fresh(model, state, 2)


def test_keys_and_values_from_outside_stay_with_their_state(tmp_path: Path) -> None:
    model = opened()
    state = continuous(generate.text(model))(SYSTEM, max_tokens=2)
    cache, ids, mask = state.kv_cache, state.token_ids.flatten(0, 1), state.attention_mask.flatten(0, 1)
    assert cache is not None
    for layer in cache.layers:
        layer.keys.mul_(1.002)  # more than rounding, less than what `from_cache` refuses
    state.save(tmp_path / "state")
    model.prefix_cache.clear()
    wrong = SequenceState.from_cache(model, ids, cache, attention_mask=mask)
    model.prefix_cache.clear()  # of what `from_cache` has fed to compare
    loaded = SequenceState.load(tmp_path / "state", model)
    for given in (wrong, loaded):
        continuous(generate.text(model))(given + SYSTEM, max_tokens=2)
    assert model.prefix_cache.entries == 0
    with BatchedExecutor(model) as executor:
        conversation = executor.create(SYSTEM)
        executor.infer()
        held = model.prefix_cache.num_tokens
        conversation.drop(3, 9, mode="shift")
        conversation.prompt(SYSTEM)
        executor.infer()
        assert held == model.prefix_cache.num_tokens
    assert_is_fresh(model, continuous(generate.text(model))(SYSTEM, max_tokens=2), 2)


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "mistral", "gemma3", "llama"])
@pytest.mark.parametrize("lacking", ["can_branch", "can_stack"])
def test_other_families_write_what_a_fresh_run_writes(family: str, lacking: str) -> None:
    model = opened(family)
    texts = [SYSTEM + "red", SYSTEM + "blue", SYSTEM]
    with mock.patch.object(HuggingFaceModel, lacking, new_callable=mock.PropertyMock, return_value=False), model.meter() as meter:
        assert wanted(model, texts) == finished(model, submitted(model, texts))
        assert wanted(model, texts[:1]) == finished(model, submitted(model, texts[:1]))
    assert meter.reused_tokens >= 3 * (num_ids(SYSTEM) - 2)


def test_a_recurrent_model_reuses_nothing_and_says_so() -> None:
    model = models.from_transformers(recurrent_network(), FakeTokenizer())
    with model.meter() as meter:
        generate.text(model)([SYSTEM, SYSTEM], max_tokens=1)
    assert (meter.reused_tokens, model.prefix_cache.entries) == (0, 0)
    assert "reuse  no   a recurrent state" in str(model.capabilities)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_angles_that_depend_on_the_length_of_a_text_are_not_reused(kind: str) -> None:
    network = random_network("llama")
    network.config.rope_parameters = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    model = models.from_transformers(network, FakeTokenizer())
    assert not model.can_reuse
    with model.meter() as meter:
        generate.text(model)([SYSTEM] * 2, max_tokens=1)
    assert meter.reused_tokens == 0


def test_a_failed_row_leaves_nothing() -> None:
    model = opened()
    weight = model.hugging_face.get_input_embeddings().weight
    token_id = model.tokenizer.encode("日")[0]
    with torch.no_grad():
        weight[token_id] = torch.nan
    state = continuous(generate.text(model))([SYSTEM + "日", SYSTEM + "red"], max_tokens=2)
    assert state.errors[0][0] is not None
    assert state.errors[1][0] is None
    assert_is_fresh(model, continuous(generate.text(model))(SYSTEM + "blue", max_tokens=2), 2)


# -- what else goes on from it ---------------------------------------------------------------------------------------------


def test_texts_that_start_without_keys_and_values_take_them_from_the_cache() -> None:
    model = opened()
    state = continuous(generate.text(model))("In short:\n" + SYSTEM, max_tokens=4)
    whole = continuous(generate.text(model))(state.tokens[1:] + " it", max_tokens=2)
    for again in (state.tokens[1:] + " it is", state.tokens[1:].take([(0, 0)]) + " it"):
        with model.meter() as meter:
            again = continuous(generate.text(model))(again, max_tokens=1)
        assert meter.reused_tokens >= len(ids_of(whole)[0]) - 6
        assert_is_fresh(model, again, 1)
    with model.meter() as meter:
        front = continuous(generate.text(model))("In short:\n" + state[10:], max_tokens=1)
    assert meter.reused_tokens > num_ids(SYSTEM)
    assert_is_fresh(model, front, 1)


def test_log_probabilities_of_a_prompt_are_computed_though_it_is_held() -> None:
    model, plain = opened(), opened(prefix_cache_bytes=0)
    states = []
    for one in (model, plain):
        generate.text(one)(SYSTEM, max_tokens=1)
        with BatchedExecutor(one) as executor:
            conversation = executor.create(SYSTEM)
            executor.infer()
            states.append(conversation.logits(5))
    assert_close(states[1], states[0], 1e-9)


def test_an_executor_says_what_it_has_fed() -> None:
    model = opened()
    generate.text(model)(SYSTEM, max_tokens=1)
    with BatchedExecutor(model) as executor:
        executor.create(SYSTEM + " red"), executor.create(SYSTEM + " red")
        with model.meter() as meter:
            fed = executor.infer()
        assert fed == meter.fed_tokens < num_ids(SYSTEM)


# -- options and threads ---------------------------------------------------------------------------------------------------


def test_without_bytes_nothing_is_reused() -> None:
    model = opened(prefix_cache_bytes=0)
    with model.meter() as meter:
        generate.text(model)([SYSTEM] * 3, max_tokens=1)
    assert (3 * num_ids(SYSTEM), 0) == (meter.fed_tokens, meter.reused_tokens)
    assert repr(model.prefix_cache) == "<PrefixCache, turned off>"


@pytest.mark.parametrize("size", [1, PER_TOKEN, 20 * PER_TOKEN])
def test_a_cache_of_one_token_holds_nothing_and_rows_that_run_are_shared_all_the_same(size: int) -> None:
    model = opened(prefix_cache_bytes=size)
    with model.meter() as meter:
        generate.text(model)([SYSTEM] * 3, max_tokens=1)
    assert (num_ids(SYSTEM) + 2, 0) == (meter.fed_tokens, model.prefix_cache.entries)


def test_the_default_is_a_share_of_the_memory(tmp_path: Path) -> None:
    model = models.from_transformers(random_network("llama"), FakeTokenizer())
    assert 0 < model.prefix_cache.max_bytes <= 4 * 2**30
    assert default_prefix_cache_bytes(torch.device("cpu")) == model.prefix_cache.max_bytes
    limit = tmp_path / "memory.max"
    limit.write_text(f"{2**24}\n")
    with mock.patch("outlines_cont.models.hugging_face._CGROUP_LIMITS", (tmp_path / "missing", limit)):
        assert default_prefix_cache_bytes(torch.device("cpu")) == 2**20


def test_it_shows_what_it_holds() -> None:
    model = opened()
    generate.text(model)([SYSTEM] * 2, max_tokens=1)
    cache = model.prefix_cache
    assert (1, 1, num_ids(SYSTEM) - 1) == (cache.entries, cache.hits, cache.reused_tokens)
    assert num_ids(SYSTEM) == cache.num_tokens
    assert f"<PrefixCache of 1 entries, 0.0 of 16.0 MiB, 1 hits, {num_ids(SYSTEM) - 1} tokens reused" in repr(cache)


def test_threads_share_one_cache() -> None:
    model = opened(prefix_cache_bytes=100 * PER_TOKEN)
    texts = [SYSTEM[: 20 + 7 * i] + "red" for i in range(6)]
    results: dict[int, list[int]] = {}
    stop = threading.Event()

    def clearing() -> None:
        while not stop.wait(0.002):
            model.prefix_cache.clear()
            assert "MiB" in repr(model.prefix_cache)

    def write(index: int) -> None:
        for _ in range(3):
            (results[index],) = ids_of(continuous(generate.text(model))(texts[index], max_tokens=3))

    threads = [threading.Thread(target=write, args=(i,)) for i in range(len(texts))]
    cleaner = threading.Thread(target=clearing)
    cleaner.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    cleaner.join()
    assert wanted(model, texts, 3) == [results[i] for i in range(len(texts))]


def test_an_interrupted_change_of_the_cache_costs_no_more_than_its_entries() -> None:
    model = opened()
    generate.text(model)(SYSTEM, max_tokens=1)
    with mock.patch("outlines_cont.kv.prefix_cache.PrefixNode", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        generate.text(model)("in " + SYSTEM, max_tokens=1)
    gc.collect()
    state = continuous(generate.text(model))([SYSTEM, "in " + SYSTEM], max_tokens=2)
    assert_is_fresh(model, state, 2)
    del state
    gc.collect()
    assert 0 < model.prefix_cache.nbytes == model.kv_store.nbytes
