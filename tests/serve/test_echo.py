"""The prompt in the reply, with log-probabilities: `echo`, `prompt_logprobs`, and the requests of evaluation harnesses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outlines_cont import models
from tests.serve.running import Running

TEXT = "Message: Two lamps, please. é🙂"


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with Running(models.tiny()) as running:
        yield running


def harness(served: Running, prompts: Any, **more: Any) -> dict[str, Any]:
    """The request by which lm-eval's `local-completions` scores texts."""
    body = {"model": "tiny", "prompt": prompts, "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    reply = served.post("/v1/completions", body | more)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_the_requests_of_lm_eval_get_what_it_reads(served: Running) -> None:
    model = served.model
    contexts, texts = ["Message: Two lamps", "Kind: "], [", please.", "order"]
    prompts = [[*model.tokenizer.encode(context)] for context in contexts]
    asked = [ids + model.tokenizer.encode_inside(text, ids) for ids, text in zip(prompts, texts, strict=True)]
    out = harness(served, asked)
    wanted = model.score([tuple(ids) for ids in prompts], [tuple(ids[len(own) :]) for ids, own in zip(asked, prompts, strict=True)])
    for choice, ids, own, scores in zip(out["choices"], asked, prompts, wanted, strict=True):
        columns = choice["logprobs"]
        assert columns["token_logprobs"][0] is None
        assert columns["top_logprobs"][0] is None
        # As lm-eval reads them: without the token that was written.
        assert columns["token_logprobs"][len(own) : -1] == pytest.approx(scores.tolist(), abs=1e-4)
        assert {len(column) for column in columns.values()} == {len(ids) + 1}
        for token, value, top in list(zip(*[columns[name] for name in ("tokens", "token_logprobs", "top_logprobs")], strict=True))[1:]:
            ((best, most),) = top.items()
            assert value <= most + 1e-6
            assert (token == best) == (value == most) or token == model.tokenizer.special_tokens[model.tokenizer.eos_token_id]
        assert choice["text"].startswith(model.tokenizer.decode(ids))
    # A text, and nothing written.
    (choice,) = harness(served, TEXT, max_tokens=0)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (TEXT, "length")
    assert len(choice["logprobs"]["tokens"]) == len(model.tokenizer.encode(TEXT, add_special_tokens=True))
    assert choice["logprobs"]["text_offset"][:2] == [0, len(choice["logprobs"]["tokens"][0])]


def test_an_echo_is_the_same_in_a_stream_and_without_log_probabilities(served: Running) -> None:
    body: dict[str, Any] = {"model": "tiny", "prompt": [TEXT, "Kind:"], "max_tokens": 3, "temperature": 0, "echo": True, "n": 2}
    whole = served.client.completions.create(**body, logprobs=2)
    texts, tokens, values = ["", "", "", ""], [[], [], [], []], [[], [], [], []]  # type: ignore[var-annotated]
    for chunk in served.client.completions.create(**body, logprobs=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
            values[choice.index] += choice.logprobs.text_offset
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]  # type: ignore[union-attr]
    assert values == [choice.logprobs.text_offset for choice in whole.choices]  # type: ignore[union-attr]
    bare = served.client.completions.create(**body)
    assert [choice.text for choice in bare.choices] == texts
    assert [choice.logprobs for choice in bare.choices] == [None] * 4
    assert texts[0].startswith(TEXT)
    plain = served.client.completions.create(**(body | {"echo": False, "prompt": TEXT, "n": 1}))
    assert texts[0] == TEXT + plain.choices[0].text


def test_log_probabilities_of_a_prompt_are_listed_as_vllm_lists_them(served: Running) -> None:
    model = served.model
    body = {"model": "tiny", "prompt": TEXT, "max_tokens": 1, "prompt_logprobs": 3}
    (choice,) = served.post("/v1/completions", body).json()["choices"]
    first, *rest = choice["prompt_logprobs"]
    ids = model.tokenizer.encode(TEXT, add_special_tokens=True)
    assert first is None
    assert [one[str(token_id)]["logprob"] for one, token_id in zip(rest, ids[1:], strict=True)] == pytest.approx(
        model.score(tuple(ids[:1]), tuple(ids[1:])).tolist(), abs=1e-4
    )
    assert all(len(one) in (3, 4) for one in rest)
    assert not choice["text"].startswith(TEXT)
    assert choice["logprobs"] is None
    refused = served.post("/v1/completions", body | {"stream": True})
    assert refused.status_code == 400
    assert "prompt_logprobs" in refused.json()["error"]["message"]
    assert served.post("/v1/completions", body | {"prompt_logprobs": 21}).status_code == 400
