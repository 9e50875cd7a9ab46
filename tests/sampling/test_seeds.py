"""One rule for seeds: an int is the seed of each prompt, and samples are keyed by their number. So a text depends on its prompt, the seed
and the number of its sample alone: not on the place in a batch, on what else is in it, on forks of others, or on the door that it came by.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest
import torch

from outlines_cont import Chat, continuous, generate, samplers
from outlines_cont.pipelines import Extractor
from outlines_cont.templates import Template
from tests.chat_models import chat_model
from tests.fakes import random_model
from tests.serve.running import Running

DTYPES = (torch.float64, torch.float32)
PROMPTS = ("the name", "a", "some other words, and more", "x = ")


@cache
def _model(dtype: torch.dtype) -> Any:
    return random_model(dtype=dtype)


@cache
def _alone(dtype: torch.dtype, prompt: str, seed: int, num_samples: int) -> list[str]:
    """The texts of a prompt by one plain call."""
    writing = continuous(generate.text(_model(dtype), sampler=samplers.multinomial(num_samples)))
    return list(writing(prompt, max_tokens=6, rng=seed))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_text_depends_on_its_prompt_seed_and_number_alone(dtype: torch.dtype) -> None:
    drawn, model = random.Random(5), _model(dtype)
    for _ in range(8):
        prompts = drawn.choices(PROMPTS, k=drawn.randint(1, 4))
        count, seed = drawn.randint(1, 3), drawn.randrange(4)
        is_listed = drawn.random() < 0.4
        seeds = [drawn.randrange(4) for _ in prompts] if is_listed else [seed] * len(prompts)
        writing = continuous(generate.text(model, sampler=samplers.multinomial(count)))
        state = writing(prompts, max_tokens=6, rng=seeds if is_listed else seed)
        wanted = [_alone(dtype, prompt, own, 3)[:count] for prompt, own in zip(prompts, seeds, strict=True)]
        assert list(state) == [text for group in wanted for text in group]
        assert state.seeds == seeds
        again = writing(prompts, max_tokens=6, rng=state.seed)
        assert list(again) == list(state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_of_a_state_are_its_forks_and_with_a_seed_those_of_the_seed(dtype: torch.dtype) -> None:
    model, drawn = _model(dtype), random.Random(6)
    one = continuous(generate.text(model, sampler=samplers.multinomial()))
    for seed in range(2):
        state = one(drawn.choices(PROMPTS, k=2), max_tokens=3, rng=seed)
        alone = one(state, max_tokens=5, rng=9)
        for count in (2, 3):
            writing = continuous(generate.text(model, sampler=samplers.multinomial(count)))
            assert writing(state, max_tokens=5) == one(state.fork(count), max_tokens=5)
            assert list(writing(state, max_tokens=5, rng=9)[:, 0, :]) == list(alone)


def test_without_a_seed_equal_prompts_differ_and_their_seeds_make_them_again() -> None:
    model = _model(torch.float64)
    writing = continuous(generate.text(model, sampler=samplers.multinomial()))
    for rng in (None, torch.Generator().manual_seed(2)):
        state = writing(["the name"] * 6, max_tokens=8, rng=rng)
        assert len({*state}) > 1
        assert len({*state.seeds}) == 6
        assert list(writing(["the name"] * 6, max_tokens=8, rng=state.seed)) == list(state)
        assert [str(writing("the name", max_tokens=8, rng=seed)) for seed in state.seeds] == list(state)


def test_streams_templates_and_chats_draw_as_a_call_does() -> None:
    model, sampler = _model(torch.float64), samplers.multinomial()
    generator = generate.text(model, sampler=sampler)
    wanted = [generator(prompt, max_tokens=6, rng=3) for prompt in PROMPTS]
    assert generator([*PROMPTS], max_tokens=6, rng=3) == wanted
    texts = [""] * len(PROMPTS)
    for news in generator.stream([*PROMPTS], max_tokens=6, rng=3):
        texts = [text + new for text, new in zip(texts, news, strict=True)]
    assert texts == wanted
    template = Template("{{ text }}{{ gen('out', max_tokens=6) }}")
    rows = [{"text": prompt} for prompt in [*PROMPTS, PROMPTS[0]]]
    results = template.run(model, rows=rows, sampler=sampler, rng=3)
    assert [result.captures["out"] for result in results] == [*wanted, wanted[0]]
    assert [template.run(model, **row, sampler=sampler, rng=3).captures["out"] for row in rows] == [*wanted, wanted[0]]
    free = [result.captures["out"] for result in template.run(model, rows=rows[:1] * 6, sampler=sampler)]
    assert len({*free}) > 1
    chatting = chat_model("Qwen3")
    reply = generate.text(chatting, sampler=sampler)
    asked = [Chat(chatting).user(prompt) for prompt in PROMPTS]
    single = [chat.assistant(reply, rng=3, max_tokens=6).value for chat in asked]
    assert [chat.value for chat in Chat.replies(asked, reply, rng=3, max_tokens=6)] == single


def test_a_record_depends_on_the_seed_its_prompt_and_the_number_of_its_sample() -> None:
    model, schema = _model(torch.float64), {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[a-z]{3}$"}}}

    def records(prompts: list[str], samples: int = 0) -> list[str]:
        extractor = Extractor(model, schema, "{{ text }}", sampler=samplers.multinomial(), samples=samples, seed=3, max_tokens=30)
        return [repr(outcome.value) for outcome in extractor.outcomes([{"text": prompt} for prompt in prompts])]

    wanted = records([*PROMPTS])
    assert records([*reversed(PROMPTS), PROMPTS[0]], 1) == [*reversed(wanted), wanted[0]]
    assert len({*wanted}) > 1


def test_over_http_a_seed_is_that_of_each_prompt_and_choices_begin_with_the_one_choice() -> None:
    model = _model(torch.float64)
    wanted = {prompt: generate.text(model, sampler=samplers.multinomial(3))(prompt, max_tokens=6, rng=3) for prompt in PROMPTS}
    with Running(model) as served:

        def texts(prompt: Any, count: int) -> list[str]:
            body = {"model": "tiny", "prompt": prompt, "n": count, "seed": 3, "max_tokens": 6, "temperature": 1}
            return [choice["text"] for choice in served.post("/v1/completions", body).json()["choices"]]

        for prompt in PROMPTS:
            assert texts(prompt, 3) == wanted[prompt]
            assert texts(prompt, 1) == wanted[prompt][:1]
        assert texts([*PROMPTS, PROMPTS[0]], 2) == [text for one in (*PROMPTS, PROMPTS[0]) for text in wanted[one][:2]]
    with Running(chat_model("Qwen3")) as served:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "the name"}], "seed": 3, "max_tokens": 6}
        many, one = (served.post("/v1/chat/completions", body | {"n": n}).json()["choices"] for n in (3, 1))
        assert many[0]["message"] == one[0]["message"]
        assert many[0]["message"] != many[1]["message"]
