"""Languages with special tokens, through the engine: values, states, streams, retries, searches, and the processor for transformers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import fsm
from outlines_cont import BatchedExecutor, Tokens, adapters, continuous, generate, samplers
from outlines_cont.policies import Constraint
from tests.fakes import BOS, END_OF_TURN, FakeTokenizer, random_model

END, START = fsm.special("<end>"), fsm.special("<s>")
LANGUAGE = "yes" + END + fsm.regex("[a-z]{2,4}").named("word") + START + END + "red"
SAMPLED = samplers.multinomial(3, temperature=2.0)


def _names(text: str) -> str:
    return re.sub("<end>|<s>", "", text)


def test_special_tokens_are_forced_and_drawn_and_have_no_letters_in_values() -> None:
    model = random_model()
    state = continuous(generate.fsm(model, LANGUAGE, sampler=SAMPLED))("The", rng=1)
    assert len(set(state.generated[0])) > 1
    for value, written in zip(state.values[0], state.generated[0], strict=True):
        assert re.fullmatch("yes<end>[a-z]{2,4}<s><end>red", written)
        assert value == {"word": _names(written)[3:-3]}
    assert list(state) == ["The" + written for written in state.generated[0]]
    plain = generate.fsm(model, END + fsm.choice(["no"]) + START)
    assert plain("The") == "no"
    with model.meter() as meter:
        plain("The")
    assert meter.sampled_tokens == 0


def test_forced_text_is_that_of_sampling_without_it() -> None:
    model, text = random_model(), "ab" + START + "the " + END + "é"
    for force in (True, False):
        state = continuous(generate.fsm(model, text, force=force))("a>")
        assert state.generated == "ab<s>the <end>é"
        assert state.value == "abthe é"
    constraint = Constraint.of_model(model, text)
    forced = constraint.forced_tokens(constraint.token_fsm.initial_state, [])
    assert [i for i in forced if i in (BOS, END_OF_TURN)] == [BOS, END_OF_TURN]
    one_of_two = Constraint.of_model(model, "ab" + (START | END + "a"))
    assert FakeTokenizer().text_bytes(one_of_two.forced_tokens(one_of_two.token_fsm.initial_state, [])) == b"ab"


def test_a_checked_value_between_special_tokens_is_written_again() -> None:
    model = random_model()
    item = {"enum": ["x", "y"]}
    schema = {"type": "array", "prefixItems": [item], "items": item, "minItems": 2, "maxItems": 2, "uniqueItems": True}
    items = fsm.json_schema(schema, whitespace="none").named("items")
    state = continuous(generate.fsm(model, END + items + START, sampler=samplers.multinomial(8)))("A", rng=2)
    assert int(state.retries.sum()) > 0
    assert {value["items"] for value in state.values[0]} <= {'["x","y"]', '["y","x"]'}
    assert {_names(text) for text in state.generated[0]} == {value["items"] for value in state.values[0]}


def test_a_trigger_is_followed_by_its_tag() -> None:
    model = random_model()
    call = fsm.tag(END, fsm.regex("[0-9]{1,3}").named("number"), START)
    generator = generate.fsm(model, fsm.triggered([call, fsm.tag("<f>", "no", "</f>")], [END, "<f>"]), sampler=SAMPLED, end="eos")
    state = continuous(generator)("The", max_tokens=60, rng=5)
    seen = "".join(state.generated[0])
    assert "<end>" in seen
    for written in state.generated[0]:
        assert re.match("(?:(?!<end>|<f>).)*(<end>[0-9]{1,3}<s>|<f>no</f>|$|<end>[0-9]{0,3}$|<f>(no?|no</?f?)?$)", written, re.DOTALL)


@pytest.mark.parametrize("sampler", [samplers.beam_search(3), samplers.best_of(3)])
def test_searches_write_special_tokens(sampler: Any) -> None:
    state = continuous(generate.fsm(random_model(), LANGUAGE, sampler=sampler))("The", rng=1)
    assert all(re.fullmatch("yes<end>[a-z]{2,4}<s><end>red", text.removeprefix("The")) for text in list(state))


def test_the_processor_for_transformers_allows_them() -> None:
    model = random_model()
    processor = adapters.logits_processor(LANGUAGE, model.tokenizer)
    prompt = torch.tensor([model.tokenizer.encode("The")])
    ids = model.hugging_face.generate(prompt, logits_processor=[processor.of(prompt)], max_new_tokens=40, do_sample=False)
    expected = continuous(generate.fsm(model, LANGUAGE, force=False))(tuple(prompt[0].tolist()))
    assert expected.rows[0][0].token_ids == tuple(ids[0, :-1].tolist())
    with pytest.raises(fsm.VocabularyGap, match="'<tool>'"):
        adapters.logits_processor(fsm.special("<tool>"), model.tokenizer)


def test_a_grammar_with_special_tokens_and_a_schema() -> None:
    text = 'start: thought <end> %json {"enum": ["yes", "no"]} <s>\nthought[suffix="."]: /[a-z]{2,5}/'
    state = continuous(generate.cfg(random_model(), text, sampler=SAMPLED))("The", rng=1)
    assert all(re.fullmatch('[a-z]{2,5}[.]<end>"(yes|no)"<s>', written) for written in state.generated[0])


def test_a_conversation_reads_them_in_what_it_is_given() -> None:
    with BatchedExecutor(random_model()) as executor:
        conversation = executor.create("The")
        conversation.constrain("yes" + END + fsm.regex("[a-z]+"))
        conversation.prompt(Tokens.of("yes<end>abc", special=True))
        with pytest.raises(fsm.TokenNotAllowed, match="special token '<end>'"):
            conversation.prompt(Tokens.of("<end>", special=True))
