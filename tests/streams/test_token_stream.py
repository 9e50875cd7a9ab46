"""`TokenStream` by example: stops, special tokens, the prefix space, values, cost, and what is refused."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from outlines_cont import TokenSet, TokenStream, samplers
from outlines_cont.errors import OptionError, SamplerError, TokenizerError
from outlines_cont.streams import Stop
from tests.fakes import BOS, END_OF_TURN, EOS, VOCAB_SIZE, FakeTokenizer
from tests.tokenizer_kinds import EVERY_KIND, tokenizer_of

TOKENIZER = FakeTokenizer()
# One takes six seconds to open, and is read by the same code as others.
KINDS = [kind for kind in EVERY_KIND if kind != "tekken 12k as tokenizer.json"]


def pushed(stream: TokenStream, token_ids: Sequence[int]) -> TokenStream:
    for token_id in token_ids:
        stream = stream.push(token_id)
    return stream


def fed(text: str, **options: Any) -> TokenStream:
    return pushed(TokenStream(TOKENIZER, **options), TOKENIZER.encode(text))


def test_a_stop_text_begins_in_the_prompt_only_if_that_is_asked_for() -> None:
    options: dict[str, Any] = {"stop_at": "\nUser:", "prompt": "Hi\nUser"}
    stopped = fed(": x", stop_in_prompt=True, **options).flush()
    assert ("", Stop("\nUser:", None, -5)) == (stopped.text, stopped.stop)
    assert (fed(": x", **options).flush().text, fed(": x", **options).stop) == (": x", None)


def test_a_stop_token_shows_what_is_held_and_adds_nothing() -> None:
    stream = fed("12 Use", stop_at="User", stop_token_ids=[END_OF_TURN, EOS])
    assert (stream.text, stream.held) == ("12 ", b"Use")
    ended = stream.push(END_OF_TURN)
    assert (ended.text, ended.new_text, ended.held) == ("12 Use", "Use", b"")
    assert (Stop(None, END_OF_TURN, 6), "stop") == (ended.stop, ended.finish_reason)
    assert ended.token_ids[-1] == END_OF_TURN
    assert stream == ended.rewind(1)


def test_an_ordinary_token_may_be_a_stop_token_and_has_no_text_then() -> None:
    newline = TOKENIZER.encode("\n")[0]
    stream = pushed(TokenStream(TOKENIZER, stop_token_ids=newline, keep_stop=True), TOKENIZER.encode("on\noff"))
    assert ("on", Stop(None, newline, 2)) == (stream.text, stream.stop)


def test_the_end_of_text_of_the_tokenizer_stops_unless_other_tokens_are_named() -> None:
    assert Stop(None, EOS, 2) == fed("no").push(EOS).stop
    assert not fed("no", stop_token_ids=[]).push(EOS).finished
    assert not fed("no", stop_token_ids=[END_OF_TURN]).push(EOS).finished
    assert not pushed(TokenStream(FakeTokenizer(eos=False)), [EOS]).finished


def test_special_tokens_are_skipped_or_shown_as_they_are_written() -> None:
    ids = [BOS, *TOKENIZER.encode("yes"), END_OF_TURN, *TOKENIZER.encode("no")]
    assert pushed(TokenStream(TOKENIZER), ids).text == "yesno"
    assert pushed(TokenStream(TOKENIZER, skip_special_tokens=False), ids).text == "<s>yes<end>no"
    stopped = pushed(TokenStream(TOKENIZER, skip_special_tokens=False, stop_at="s<end>"), ids)
    assert ("<s>ye", Stop("s<end>", None, 5)) == (stopped.text, stopped.stop)
    assert (len(TOKENIZER), TokenStream(TOKENIZER, skip_special_tokens=False).push(VOCAB_SIZE - 1).text) == (VOCAB_SIZE, "")


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_begins_loses_its_prefix_space_and_one_that_goes_on_does_not(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode("in the moment")
    assert tokenizer.decode(ids) == pushed(TokenStream(tokenizer, prompt=""), ids).flush().text
    whole = tokenizer.text_bytes(ids).decode()
    assert whole == pushed(TokenStream(tokenizer), ids).flush().text
    assert whole == pushed(TokenStream(tokenizer, prompt="So"), ids).flush().text


@pytest.mark.parametrize("kind", KINDS)
def test_every_special_token_has_a_name(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    assert tokenizer.special_token_ids == tokenizer.special_tokens.keys()
    assert all(tokenizer.special_tokens.values())
    eos = tokenizer.eos_token_id
    if eos is not None:
        shown = TokenStream(tokenizer, skip_special_tokens=False, stop_token_ids=[]).push(eos)
        assert tokenizer.special_tokens[eos] == shown.text


def test_a_tokenizer_of_hugging_face_is_read() -> None:
    given = EVERY_KIND["GPT-2"]()
    assert pushed(TokenStream(given, stop_at="stop"), given.encode("don't stop").ids).text == "don't "


def test_a_flush_ends_the_stream_with_a_reason_and_can_be_taken_back() -> None:
    stream = fed("12 Use", stop_at="User")
    ended = stream.flush("cancelled")
    assert (ended.text, ended.new_text, ended.finish_reason, ended.stop) == ("12 Use", "Use", "cancelled", None)
    for after in (ended.flush("again"), ended.push(EOS), ended.push(EOS).flush()):
        assert (ended, "", "cancelled") == (after, after.new_text, after.finish_reason)
    assert (stream.num_tokens, stream.token_ids) == (ended.num_tokens, ended.token_ids)
    assert stream.rewind(1) == ended.rewind(1)
    assert stream.text == "12 "


def test_streams_are_values() -> None:
    stream = fed("yes", stop_at=["a", "b"])
    assert stream is copy.copy(stream) is copy.deepcopy(stream)
    assert fed("yes", stop_at=["a", "b"]) == stream == stream.fork()
    assert stream != fed("yes") != fed("no") != "no"
    assert len({stream, stream.fork()}) == 1
    with pytest.raises((AttributeError, TypeError)):
        stream.text = ""  # type: ignore[misc]
    with pytest.raises(AttributeError):
        stream._place = stream._place  # type: ignore[misc]
    assert repr(stream) == "<TokenStream of 1 tokens, text='yes', held=b''>"
    assert "finish_reason='stop'" in repr(stream.push(EOS))


@pytest.mark.parametrize("end", ["", "flush", "stop", "beyond"])
def test_a_stream_is_pickled_with_its_tokens(end: str) -> None:
    options: dict[str, Any] = {"stop_at": ["x"], "keep_stop": True, "prompt": "a", "stop_in_prompt": True}
    stream = fed("yes" * 1000, **options)
    logits = torch.zeros(VOCAB_SIZE)
    logits[TOKENIZER.encode("o")] = 50.0
    stream = stream.push_logits(logits, samplers.multinomial(), rng=1)
    stream = stream.flush("cut") if end == "flush" else stream.push(TOKENIZER.encode("x")[0]) if end else stream
    stream = stream.push(EOS) if end == "beyond" else stream
    again = pickle.loads(pickle.dumps(stream))  # noqa: S301
    for name in ("text", "new_text", "token_ids", "held", "stop", "finish_reason", "logprob"):
        assert getattr(stream, name) == getattr(again, name)
    assert again.rewind(1).text == stream.rewind(1).text
    if not end:
        wide = torch.zeros(VOCAB_SIZE)
        drawn = [s.push_logits(wide, samplers.multinomial(), rng=1).token_ids[-1] for s in (stream, again)]
        assert drawn[0] == drawn[1]


def test_a_push_costs_the_same_after_ten_thousand_tokens() -> None:
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    stream, costs = TokenStream(TOKENIZER, stop_at=["User:", "\n\n"]), []
    ids = TOKENIZER.encode("some of the text é Use")
    for at in range(10_000):
        if at in (28, 9_982):  # at the same place of the text, which has 14 tokens
            calls = 0
            sys.setprofile(count)
        stream = stream.push(ids[at % len(ids)])
        if at in (28 + 11, 9_982 + 11):
            sys.setprofile(None)
            costs.append(calls)
    assert at % len(ids) == 9_999 % len(ids)
    assert abs(costs[0] - costs[1]) <= 6
    del stream  # ten thousand places are linked; to let them go takes no stack


@pytest.mark.parametrize("odd", [-1, VOCAB_SIZE, 10**30, "7", True, None, 1.5, [3]])
def test_an_id_that_the_tokenizer_does_not_have_is_refused(odd: Any) -> None:
    stream = fed("yes")
    with pytest.raises(TokenizerError, match="expected a token id"):
        stream.push(odd)
    assert stream.text == "yes"
    for option in ("stop_token_ids", "prompt"):
        with pytest.raises(OptionError, match=f"in `{option}`: expected a token id|as `{option}`") as caught:
            fed("", **{option: [odd]})
        assert option == caught.value.option


def test_ids_of_arrays_and_tensors_are_ids() -> None:
    (yes,) = TOKENIZER.encode("yes")
    stream = pushed(TokenStream(TOKENIZER, stop_token_ids=np.array([EOS])), torch.tensor([yes, yes]))  # type: ignore[arg-type]
    assert (yes, yes) == stream.push(np.int32(EOS)).token_ids[:2]
    assert all(type(token_id) is int for token_id in stream.token_ids)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_at": ["a", ""]}, "received ''"),
        ({"stop_token_ids": "ab"}, "in `stop_token_ids`: expected a token id, an int, received 'a'"),
        ({"prompt": 3.5}, "as `prompt`, got float"),
        ({"prompt": b"ab"}, "as `prompt`, got bytes"),
        ({"stop_in_prompt": True}, "expected `prompt` with `stop_in_prompt`"),
        ({"keep_stop": 1}, "True or False as `keep_stop`, got 1"),
        ({"skip_special_tokens": None}, "as `skip_special_tokens`, got None"),
    ],
)
def test_an_option_out_of_its_range_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TokenStream(TOKENIZER, **options)


@pytest.mark.parametrize("n", [-1, 2, True, 1.0, None])
def test_a_rewind_beyond_the_beginning_is_refused(n: Any) -> None:
    with pytest.raises(OptionError, match="expected an int from 0 to 1, the tokens of the stream, as `n`"):
        fed("yes").rewind(n)


@pytest.mark.parametrize("reason", ["", None, 3])
def test_a_flush_without_a_reason_is_refused(reason: Any) -> None:
    with pytest.raises(OptionError, match="expected a reason as `finish_reason`"):
        fed("yes").flush(reason)


def test_what_is_no_tokenizer_is_refused() -> None:
    with pytest.raises(TokenizerError, match="expected a Hugging Face tokenizer"):
        TokenStream("gpt2")


def test_no_model_and_no_torch_is_loaded_for_a_stream() -> None:
    code = "import sys; from outlines_cont import TokenStream; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_sampler_that_draws_what_the_mask_leaves_out_is_refused() -> None:
    class Careless:
        num_samples = None
        needs_random = needs_counts = False

        def sample(self, logits: Any, uniforms: Any, counts: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tensor([1]), torch.tensor([0.0])

    stream = TokenStream(FakeTokenizer())
    with pytest.raises(SamplerError):
        stream.push_logits(torch.zeros(351), Careless(), mask=TokenSet.of([2, 3]))  # type: ignore[arg-type]
