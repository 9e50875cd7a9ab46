"""Random operations on states with images: each still has its text and its images, and what is written behind them is exact, though keys
and values are evicted all the time, and many images have equal ids.
"""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from typing import Any

import pytest

from outlines_cont import Engine, Guidance, SequenceState, Template, Thinking, continuous, generate, models, policies, samplers
from tests.examples import first
from tests.fuzz import images
from tests.fuzz.seeds import first_seed
from tests.image_models import parts, picture
from tests.images.oracle import evict_all, worst_error

_TEXTS = ["the name", " of ", "red green", ": "]


def _cut(state: SequenceState, rng: random.Random) -> SequenceState:
    text = str(state)
    at = rng.randrange(1, len(text))
    return state[:at] if rng.random() < 0.5 else state[at:]


def _cut_tokens(state: SequenceState, rng: random.Random) -> SequenceState:
    at = rng.randrange(1, state.shape[2])
    return state.tokens[..., :at] if rng.random() < 0.5 else state.tokens[..., at:]


def _saved(state: SequenceState, rng: random.Random) -> SequenceState:
    file = io.BytesIO()
    state.save(file, kv=rng.random() < 0.5)
    file.seek(0)
    return SequenceState.load(file, state.model)


def _seen(state: SequenceState, rng: random.Random) -> SequenceState:
    return state.see(rng.choice(_TEXTS) + "<image>" + rng.choice(["", " and"]), [picture(rng.randrange(3))])


_OPERATIONS: list[Callable[[SequenceState, random.Random], SequenceState]] = [
    _cut,
    _cut_tokens,
    _saved,
    _seen,
    lambda state, rng: state + rng.choice(_TEXTS),
    lambda state, rng: rng.choice(_TEXTS) + state,
    lambda state, rng: state.append(rng.choice(_TEXTS), boundary="heal"),
    lambda state, rng: state + state,
    lambda state, rng: state.detach_cache(),
    lambda state, rng: state.fork(2).take([(0, 1)]),
    lambda state, rng: _templated(state, rng),
    lambda state, rng: state.append("red", boundary="heal").tokens[..., :-1],
]


def _templated(state: SequenceState, rng: random.Random) -> SequenceState:
    template = Template(" and {{ scan }}{{ gen(max_tokens=2, min_tokens=2) }}{{ text }}")
    found = template.run(state.model, state=state, scan=picture(rng.randrange(3)), text=rng.choice(_TEXTS)).state
    assert found is not None
    return found


def _text(sampler: Any, **options: Any) -> Callable[[Any, SequenceState, int], SequenceState]:
    return lambda model, state, seed: continuous(generate.text(model, sampler=sampler))(
        state, max_tokens=2, min_tokens=2, rng=seed, **options
    )


def _resumed(model: Any, state: SequenceState, seed: int) -> SequenceState:
    """A stream that is cut after a token, and resumed from its state where keys and values are gone."""
    write = continuous(generate.regex(model, "[a-z]{2,9} [a-z]{2}", sampler=samplers.multinomial(), force=False))
    stream = write.stream(state, max_tokens=1, rng=seed)
    for _ in stream:
        pass
    return write.resume(stream.state.detach_cache(), max_tokens=2)


_WRITERS: list[Callable[[Any, SequenceState, int], SequenceState]] = [
    _text(samplers.multinomial()),
    _text(samplers.multinomial(), heal=True),
    _text(samplers.greedy(), draft="lookup"),
    _text(samplers.greedy(), guidance=Guidance("It is ", 1.5)),
    _text(samplers.multinomial(), policies=[policies.ban(["e", "the"])]),
    _text(samplers.best_of(2)),
    lambda model, state, seed: continuous(generate.regex(model, "[a-z]{2}", sampler=samplers.conditional(1, particles=12)))(
        state, rng=seed
    ),
    lambda model, state, seed: _text(samplers.beam_search(2))(model, state, seed).best(),
    lambda model, state, seed: continuous(generate.choice(model, ["red", "green", "reddish"]))(state, rng=seed),
    lambda model, state, seed: continuous(generate.regex(model, "[0-9]{2}", thinking=_THOUGHTS))(state, rng=seed),
    _resumed,
]
_THOUGHTS = Thinking(begin="(", end=")", max_tokens=3)


@pytest.mark.parametrize("family", ["llava", "gemma3", "qwen2_5_vl", "idefics3"])
@pytest.mark.parametrize("seed", first(2, range(3)))
def test_random_operations_keep_text_images_and_log_probabilities(family: str, seed: int) -> None:
    model = models.from_transformers(*parts(family), prefix_cache_bytes=200_000)
    model.prefix_cache.min_tokens = 2
    rng = random.Random(seed)
    write = continuous(generate.text(model, sampler=samplers.multinomial()))
    states = [model.see(f"{rng.choice(_TEXTS)} <image>\n{rng.choice(_TEXTS)}", [picture(i % 3)], rng=i) for i in range(4)]
    for step in range(10):
        at = rng.randrange(len(states))
        state = rng.choice(_OPERATIONS)(states[at], rng)
        if not str(state) or state.shape[2] > 160:
            continue
        for row in state.rows[0]:
            assert row.text(model.tokenizer).count("<image>") == len(row.images)
        with pytest.MonkeyPatch.context() as patch:
            _evicting(model, patch, rng)
            states[at] = rng.choice(_WRITERS)(model, state, step)
        assert worst_error(model, states[at]) < 1e-3, (step, states[at])
    batch = write(SequenceState.stack(states), max_tokens=3, min_tokens=3)
    assert worst_error(model, batch) < 1e-3
    values = batch[:, 0, :].rows
    for one, row in zip(states, values, strict=True):
        assert row[0].images == one.rows[0][0].images


def _evicting(model: models.HuggingFaceModel, patch: pytest.MonkeyPatch, rng: random.Random) -> None:
    """Let every step of the engine begin with an eviction of all that is not read, or not."""
    step = Engine.step

    def evicted(engine: Engine) -> bool:
        if rng.random() < 0.5:
            evict_all(model)
        return step(engine)

    patch.setattr(Engine, "step", evicted)


def test_pieces_of_random_chains_behind_images_are_those_of_fresh_runs() -> None:
    """As `python -m tests.fuzz images` does for as long as wanted."""
    counts, seed = images.Counts(), first_seed()
    findings = list(images.run(seed, 60, counts, count=3))
    assert not findings, f"repeat with `python -m tests.fuzz images --seed {seed}`\n" + "\n".join(findings)
    assert counts.pieces > 3


@pytest.mark.parametrize("family", ["llava", "idefics3"])
def test_images_with_equal_ids_never_mix(family: str) -> None:
    model = models.from_transformers(*parts(family))
    model.prefix_cache.min_tokens = 2
    write = continuous(generate.text(model))
    prompts = [model.see("Look: <image>\nIt is", [picture(i)]) for i in range(3)]
    blind = list(prompts[0].rows[0][0].token_ids)
    assert all(list(prompt.rows[0][0].token_ids) == blind for prompt in prompts)
    assert len(set(prompts)) == 3
    first = [write(prompt, max_tokens=3, min_tokens=3) for prompt in prompts]
    without = write(blind, max_tokens=3, min_tokens=3)
    rng = random.Random(1)
    for _ in range(4):
        order = rng.sample(range(3), 3)
        given = [prompts[i].detach_cache() if rng.random() < 0.7 else prompts[i] for i in order]
        batch = write([*given, blind], max_tokens=3, min_tokens=3)
        for found, wanted in zip(batch.rows, [*(first[i] for i in order), without], strict=True):
            assert found[0].token_ids == wanted.rows[0][0].token_ids
            assert found[0].logprobs == pytest.approx(wanted.rows[0][0].logprobs, abs=1e-4)
    assert worst_error(model, batch) < 1e-4
    assert len({tuple(state.rows[0][0].logprobs) for state in [*first, without]}) == 4
