"""States made from a cache whose keys and values do not follow from its ids, as those of an image: embeddings in place of some tokens.

Whatever is done with them, logits are those of a plain forward over the embeddings, or an error says that they would be lost.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

from outlines_cont import BatchedExecutor, SequenceState, continuous, generate, models, samplers
from outlines_cont.errors import NotRecomputable, OptionError, StateFileError
from outlines_cont.models import HuggingFaceModel
from outlines_cont.models.versions import cache_argument
from tests.examples import first
from tests.fakes import FakeTokenizer, random_network
from tests.oracle import assert_close

_BUDGET = 450 * 2 * 2 * 2 * 8 * 8  # 450 tokens of two layers, keys and values, two heads of size 8 (four in GPT-2), float64
_TEXT = "see the picture: ##########, and then the name of the rose"
_PICTURE = range(17, 27)  # of the ids of this text: its first one is that of BOS


class Plain:
    """The plain reference: embeddings in place of some ids, and whole forwards without a cache."""

    def __init__(self, family: str, text: str = _TEXT, picture: range = _PICTURE, **options: object) -> None:
        self.network = random_network(family)
        given: dict[str, object] = {"kv_budget_bytes": _BUDGET * (2 if family == "gpt2" else 1), **options}
        self.model: HuggingFaceModel = models.from_transformers(self.network, FakeTokenizer(), **given)  # type: ignore[arg-type]
        self.ids = FakeTokenizer().encode(text, add_special_tokens=True)
        torch.manual_seed(1)
        size = self.network.get_input_embeddings().weight.shape[1]
        self.picture = picture = picture[: max(len(self.ids) - picture.start, 0)]
        self.foreign = torch.randn(len(picture), size, dtype=torch.float64) * self.network.get_input_embeddings().weight.std()

    def embeds(self, ids: list[int], kept: int) -> torch.Tensor:
        """(1, T, D), with the picture in the first `kept` tokens."""
        out: torch.Tensor = self.network.get_input_embeddings()(torch.tensor([ids])).detach().clone()
        inside = range(self.picture.start, min(self.picture.stop, kept))
        if inside:
            out[0, inside.start : inside.stop] = self.foreign[: len(inside)]
        return out

    def logits(self, ids: list[int], kept: int) -> torch.Tensor:
        """(V,) logits after `ids`, of which the first `kept` are those that were given."""
        with torch.no_grad():
            found: torch.Tensor = self.network(inputs_embeds=self.embeds(ids, kept), use_cache=False).logits[0, -1]
        return found

    def cache(self, count: int | None = None) -> transformers.DynamicCache:
        """The cache of the first `count` tokens."""
        cache = transformers.DynamicCache()
        with torch.no_grad():
            self.network(
                inputs_embeds=self.embeds(self.ids, len(self.ids))[:, :count], use_cache=True, **{cache_argument(self.network): cache}
            )
        return cache

    def state(self, count: int | None = None, **options: object) -> SequenceState:
        """The state of that cache."""
        return SequenceState.from_cache(self.model, torch.tensor([self.ids]), self.cache(count), **options)  # type: ignore[arg-type]

    def fill(self) -> None:
        """Run other rows, and the same ids as a plain prompt, until what can be evicted is."""
        write = continuous(generate.text(self.model))
        self.kept = [write(f"number {i} of some other texts", max_tokens=2) for i in range(12)]
        write(self.ids, max_tokens=1)


def _through_a_buffer(state: SequenceState) -> SequenceState:
    """As a pickle does it."""
    file = io.BytesIO()
    state.save(file)
    return SequenceState.load(io.BytesIO(file.getvalue()), state.model)


def test_tokens_up_to_the_last_of_an_image_are_pinned() -> None:
    plain = Plain("llama")
    state = plain.state()
    assert [[_PICTURE.stop]] == state.pinned.tolist()
    assert continuous(generate.text(plain.model))("the name", max_tokens=1).pinned.tolist() == [[0]]
    assert_close(plain.logits(plain.ids, len(plain.ids)), state.logits[0, 0], 1e-8)
    blind = plain.logits(plain.ids, 0)
    assert float((blind - state.logits[0, 0]).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("length", "at"), first(7, [*((600, at) for at in (0, 3, 480, 511, 512, 513)), *((1100, at) for at in (512, 0, 3, 480, 511, 513))])
)
def test_the_end_of_an_image_is_found_in_any_part_of_a_long_text(length: int, at: int) -> None:
    network = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=351, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=2048,
            bos_token_id=0, eos_token_id=1,
        )
    ).double()  # fmt: skip
    model = models.from_transformers(network, FakeTokenizer())
    ids = torch.randint(3, 300, (1, length), generator=torch.Generator().manual_seed(at))
    for size in (0, 2, 40):
        embeds = network.get_input_embeddings()(ids).detach().clone()
        embeds[0, at : at + size] += 0.1
        cache = transformers.DynamicCache()
        with torch.no_grad():
            network(inputs_embeds=embeds, use_cache=True, **{cache_argument(network): cache})
        with model.meter() as meter:
            state = SequenceState.from_cache(model, ids, cache)
        assert (at + size if size else 0) == int(state.pinned)
        assert meter.fed_tokens <= length + 8 + 9 * 512


def test_an_eviction_keeps_what_cannot_be_computed_again() -> None:
    plain = Plain("llama")
    state = plain.state()
    write = continuous(generate.text(plain.model))
    first = write(state, max_tokens=3)
    plain.fill()
    assert int(state.cached) >= _PICTURE.stop
    assert int(first.cached) >= _PICTURE.stop
    for again in (state, first):
        ids = again.token_ids[0, 0].tolist()
        assert_close(plain.logits(ids, len(plain.ids)), again.logits[0, 0], 1e-8)
    assert write(state, max_tokens=3) == first
    assert plain.model.kv_store.nbytes <= _BUDGET


def test_memory_of_a_pinned_state_is_freed_with_it() -> None:
    plain = Plain("llama", prefix_cache_bytes=0)
    state = continuous(generate.text(plain.model))(plain.state(), max_tokens=3)
    assert plain.model.kv_store.nbytes
    del state
    assert not plain.model.kv_store.nbytes


@pytest.mark.parametrize(
    "lose",
    [
        lambda state, path: state.detach_cache(),
        lambda state, path: state.save(path / "state", kv=False),
        lambda state, path: state[20:],
        lambda state, path: state[::2],
        lambda state, path: state[:20:3],
        lambda state, path: state[::-1],
        lambda state, path: state.tokens[3:],
        lambda state, path: state.tokens[::2],
        lambda state, path: "Look: " + state,
        lambda state, path: ["Look: "] + state,  # noqa: RUF005
        lambda state, path: continuous(generate.text(state.model))("a", max_tokens=1) + state,
        lambda state, path: continuous(generate.text(state.model))("a", max_tokens=1).append(state),
        lambda state, path: state.tokens[:20].logits,
        lambda state, path: Plain("llama", picture=range(10, 13)).state().tokens[:13].append("the", boundary="heal"),
        lambda state, path: continuous(generate.text(state.model))(state.tokens[:20], max_tokens=1).errors[0][0],
        lambda state, path: continuous(generate.text(state.model))(state.tokens[: _PICTURE.stop], heal=True, max_tokens=1).errors[0][0],
        lambda state, path: generate.text(state.model)(state.tokens[:20], max_tokens=1),
    ],
)
def test_what_would_lose_an_image_is_refused(lose: Callable[[SequenceState, Path], object], tmp_path: Path) -> None:
    state = Plain("llama").state()
    with pytest.raises(NotRecomputable, match="keys and values of the first"):
        found = lose(state, tmp_path)
        if isinstance(found, Exception):
            raise found
    assert not [*tmp_path.iterdir()]


def test_what_keeps_an_image_is_allowed(tmp_path: Path) -> None:
    plain = Plain("llama")
    state = plain.state()
    state.save(tmp_path / "state")
    loaded = SequenceState.load(tmp_path / "state", plain.model)
    behind = state.tokens[_PICTURE.stop :]
    plain.fill()
    for kept in (loaded, _through_a_buffer(state), state.fork(2).take([(0, 1)]), SequenceState.stack([state]).best(), state.to("cpu")):
        assert kept.pinned.tolist() == state.pinned.tolist()
        plain.fill()
        assert_close(plain.logits(plain.ids, len(plain.ids)), kept.logits[0, 0], 1e-8)
    longer = state + " red"
    assert_close(plain.logits(longer.token_ids[0, 0].tolist(), len(plain.ids)), longer.logits[0, 0], 1e-8)
    cut = state.tokens[:20] + " red"  # within the image
    assert_close(plain.logits(cut.token_ids[0, 0].tolist(), 20), cut.logits[0, 0], 1e-8)
    assert behind.pinned.tolist() == [[0]]
    assert_close(plain.logits(behind.token_ids[0, 0].tolist(), 0), behind.logits[0, 0], 1e-8)
    state.inspect(tmp_path / "page.html", top=2)


def test_rows_with_the_same_ids_do_not_share_an_image() -> None:
    plain = Plain("llama", text=_TEXT * 2, kv_budget_bytes=None, prefix_cache_bytes=2**24)
    write = continuous(generate.text(plain.model))
    blind = plain.logits(plain.ids, 0)
    for prompts in ([plain.state(), plain.ids], [plain.ids, plain.state()], [plain.state()], [plain.ids]):
        states = write(prompts, max_tokens=1, min_tokens=1)
        logits = [plain.logits(plain.ids, len(plain.ids)) if isinstance(prompt, SequenceState) else blind for prompt in prompts]
        wanted = [float(line.log_softmax(0)[int(row[0, -1])]) for line, row in zip(logits, states.token_ids, strict=True)]
        assert wanted == pytest.approx([float(row[0, -1]) for row in states.logprobs], abs=1e-6)


def test_a_cache_is_declared() -> None:
    plain = Plain("llama", picture=range(26, 1000))
    count = len(plain.ids)
    with pytest.raises(OptionError, match="recomputable=False"):
        plain.state(count - 1)
    state = plain.state(count - 1, recomputable=False)
    assert [[count - 1]] == state.pinned.tolist()
    with pytest.raises(OptionError, match="the last token must be one of text"):
        plain.state(recomputable=False)  # the last token would be fed for the logits after it
    with pytest.raises(OptionError, match="expected True, False or None as `recomputable`, got 1"):
        plain.state(recomputable=1)
    text = Plain("llama", picture=range(0))
    assert text.state().pinned.tolist() == [[0]]
    assert text.state(recomputable=True).pinned.tolist() == [[0]]
    declared = text.state(recomputable=False)
    assert [[len(text.ids) - 1]] == declared.pinned.tolist()
    assert_close(text.logits(text.ids, 0), declared.logits[0, 0], 1e-8)


def test_keys_that_depend_on_the_length_are_pinned_as_they_cannot_be_compared() -> None:
    network = random_network("llama")
    config = network.config
    config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = models.from_transformers(transformers.LlamaForCausalLM(config).double().eval(), FakeTokenizer())
    assert not model.can_reuse
    ids, cache = torch.tensor([[3, 4, 5, 6, 7]]), transformers.DynamicCache()
    with torch.no_grad():
        model.hugging_face(ids, **{model.cache_argument: cache})
    assert SequenceState.from_cache(model, ids, cache).pinned.tolist() == [[4]]
    assert SequenceState.from_cache(model, ids, cache, recomputable=True).pinned.tolist() == [[0]]


def test_a_file_without_what_is_pinned_is_refused(tmp_path: Path) -> None:
    from outlines_cont.state import file

    plain = Plain("llama")
    state = plain.state()
    path = tmp_path / "state"
    patched = pytest.MonkeyPatch()
    with patched.context() as patch:
        patch.setattr("outlines_cont.state.row.StateRow.check_pinned", lambda *_: None)
        file.save_state(path, plain.model, state.rows, 0, kv=False)
    with pytest.raises(StateFileError, match="without keys and values that cannot be computed again"):
        SequenceState.load(path, plain.model)


def test_a_conversation_keeps_an_image() -> None:
    plain = Plain("llama")
    with BatchedExecutor(plain.model) as executor:
        conversation = executor.create()
        conversation.prompt(plain.state())
        conversation.prompt(" red")
        executor.infer()
        plain.fill()
        state = conversation.state
        assert_close(plain.logits(state.token_ids[0, 0].tolist(), len(plain.ids)), state.logits[0, 0], 1e-8)
        for mode in ("shift", "recompute"):
            with pytest.raises(NotRecomputable):
                conversation.drop(3, 9, mode=mode)
        conversation.rewind(3)
        state = conversation.state
        assert_close(plain.logits(state.token_ids[0, 0].tolist(), len(plain.ids)), state.logits[0, 0], 1e-8)


def _slice(choose: random.Random, length: int) -> slice:
    if choose.random() < 0.5:
        return slice(None, choose.randrange(-length, length + 2))
    start, stop, step = (choose.choice([None, *range(-length, length + 2)]) for _ in range(3))
    return slice(start, stop, choose.choice([1, 1, 1, step or 2]))


def _changed(choose: random.Random, plain: Plain, state: SequenceState, path: Path) -> SequenceState:
    """Return what a random operation makes of a state of one row."""
    write = continuous(generate.text(plain.model, sampler=samplers.multinomial(temperature=choose.choice([0.5, 3.0]))))
    other = continuous(generate.text(plain.model))("the other", max_tokens=2)
    length = len(state.token_ids[0, 0])

    def saved() -> SequenceState:
        state.save(path, kv=choose.random() < 0.8)
        return SequenceState.load(path, plain.model)

    def at_once() -> SequenceState:
        prompts = [state, plain.ids, state + " red", "the name"]
        choose.shuffle(prompts)
        where = next(i for i, prompt in enumerate(prompts) if prompt is state)
        return write(prompts, max_tokens=3).take([(where, 0)])

    operations: list[Callable[[], SequenceState]] = [
        lambda: write(state, max_tokens=choose.randint(1, 4), heal=choose.random() < 0.3),
        lambda: write(state, max_tokens=choose.randint(1, 4)),
        lambda: continuous(generate.regex(plain.model, " ?(the name|a rose|[0-9]{3})"))(state, max_tokens=9),
        lambda: state.tokens[_slice(choose, length)],
        lambda: state[_slice(choose, len(str(state)))],
        lambda: state + choose.choice([" and", "日", [7, 8]]),
        lambda: state.append(" of", boundary=choose.choice(["heal", "as_is"])),
        lambda: choose.choice([state + other, other + state, "a " + state]),
        lambda: state.detach_cache() if choose.random() < 0.3 else state.to("cpu"),
        saved,
        at_once,
        lambda: write(state.fork(3), max_tokens=2).take([(0, -1)]),
        lambda: continuous(generate.text(plain.model, sampler=samplers.beam_search(2)))(state, max_tokens=2).take([(0, -1)]),
        lambda: _through_a_buffer(state),
    ]
    return choose.choice(operations)()


_STEPS = 15


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3"])
@pytest.mark.parametrize("seed", first(1, range(2)))
def test_random_operations_have_the_logits_of_a_plain_forward_or_are_refused(family: str, seed: int, tmp_path: Path) -> None:
    choose = random.Random(f"{family} {seed}")
    size = choose.choice([0, 1, 10])
    picture = range(17, 17 + size)
    plain = Plain(family, picture=picture, prefix_cache_bytes=choose.choice([0, 2**22]))
    plain.model.prefix_cache.min_tokens = 2
    start = plain.state(recomputable=choose.choice([None, None, False]))
    state, kept, refused = start, len(plain.ids), 0
    for _ in range(_STEPS):
        if not 0 < len(state.token_ids[0, 0]) < 150:
            state, kept = start, len(plain.ids)
        try:
            after = _changed(choose, plain, state, tmp_path / "state")
            if choose.random() < 0.3:
                plain.fill()
            if after.errors[0][0] is not None:
                raise after.errors[0][0]
            ids = after.token_ids[0, 0].tolist()
            logits = after.logits[0, 0] if ids else None
        except NotRecomputable:
            refused += 1
            continue
        # What a row has in common with the one before it is the same row.
        before = state.token_ids[0, 0].tolist()
        common = next((i for i, pair in enumerate(zip(ids, before, strict=False)) if pair[0] != pair[1]), min(len(ids), len(before)))
        state, kept = after, min(kept, common)
        if logits is not None:
            assert_close(plain.logits(ids, kept), logits, 1e-8)
    assert refused < _STEPS
