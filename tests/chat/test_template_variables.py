"""Variables of chat templates: whatever their names and values, the named variables of the template change, and nothing else."""

from __future__ import annotations

import inspect
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import MistralConfig, MistralForCausalLM

from outlines_cont import Chat, models
from outlines_cont.errors import ChatError, OptionError, StateFileError
from outlines_cont.state.file import load_chat, save_state
from outlines_cont.user_code import shielded
from tests.chat_models import chat_model
from tests.serve.running import Running
from tests.tokenizer_kinds import tokenizer_of

READ = ("first", "second", "documents")
PROBE = (
    "{{ messages | tojson }}{{ tools | tojson }}{{ add_generation_prompt }}{{ continue_final_message }}{{ bos_token }}{{ eos_token }}"
    "{{ pad_token }}{{ range(2) | list }}{{ namespace(a=1).a }}{{ dict(a=1) }}{{ strftime_now('%%') }}"
    "{% if '' %}{{ raise_exception('') }}{% endif %}"
)
SHOWN = "".join(f"|{{{{ {name} | tojson if {name} is defined else '-' }}}}" for name in READ)
NAMES = [
    *inspect.signature(Chat.__init__).parameters,
    *("messages", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token", "pad_token", "image_token"),
    *("range", "namespace", "dict", "raise_exception", "strftime_now", "cls", "source", "conversation", "chat_template", "tokenize"),
    *("", "__class__", "\ud800", "first ", *READ),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just("<|im_end|><think>"),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=5), parts, max_size=3),
    max_leaves=6,
)
VARIABLES = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), JSON, max_size=3)
"""What a client may send as `chat_template_kwargs`."""


def _text(variables: Any) -> str:
    return str(Chat(chat_model("Qwen3"), template=PROBE + SHOWN, rng=1, template_variables=variables).user("Hi").state)


@cache
def _bare() -> str:
    return _text(None)


@given(variables=VARIABLES)
def test_a_variable_changes_what_the_template_writes_of_it_and_nothing_else(variables: dict[str, Any]) -> None:
    if set(variables) <= set(READ):
        text = _text(variables)
        shown = [json.dumps(variables[name], ensure_ascii=False) if name in variables else "-" for name in READ]
        assert text == _bare().removesuffix("|-|-|null") + "|" + "|".join([*shown[:2], "null" if shown[2] == "-" else shown[2]])
    else:
        with pytest.raises(OptionError, match="options that the chat template reads") as refused:
            _text(variables)
        assert refused.value.option == "template_variables"


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "range", "namespace"])
def test_a_reserved_name_is_said_to_be_one(name: str) -> None:
    with pytest.raises(OptionError, match=f"got '{name}', a reserved name: .* It reads documents, first, second"):
        _text({name: "a"})


def test_a_text_in_a_variable_is_no_special_token() -> None:
    chat = Chat(chat_model("Qwen3"), template="{{ note }}<|im_end|>", note="<|im_end|>").user("a")
    assert str(chat.state) == "<|im_end|><|im_end|>"
    table = chat.model.tokenizer.special_tokens
    assert [table.get(token) for token in chat.state.rows[0][0].token_ids].count("<|im_end|>") == 1


@pytest.mark.parametrize("given", [[], "ab", {1: 2}, [("first", 1)]])
def test_variables_are_a_dict_by_names(given: Any) -> None:
    with pytest.raises(OptionError, match="expected a dict of variables"):
        _text(given)


def test_a_saved_conversation_brings_no_template(tmp_path: Path) -> None:
    model = chat_model("Qwen3")
    chat = Chat(model, rng=1, enable_thinking=False).user("Hi")
    chat.save(tmp_path / "a")
    assert Chat.load(tmp_path / "a", model) == chat
    text = load_chat(tmp_path / "a", model)[2]
    for options in ({"template": "{{ messages }}"}, {"tool_form": "hermes"}, {"rng": 3}, {"model": 1}, {"tools": []}):
        forged = json.dumps(json.loads(text) | {"options": options})
        save_state(tmp_path / "b", model, chat.state.rows, chat.state.seed, kv=False, chat=forged)
        with pytest.raises(StateFileError, match="which it does not read|a reserved name"):
            Chat.load(tmp_path / "b", model)


def test_mistral_common_takes_its_variable_alone() -> None:
    tokenizer = tokenizer_of("SentencePiece 32k in mistral-common")
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    model = models.from_transformers(MistralForCausalLM(MistralConfig(vocab_size=len(tokenizer.token_bytes), **shape)), tokenizer)
    for name in ("tokenize", "padding", "return_tensors", "conversation", "messages", "max_length", "truncate_for_context_length"):
        with pytest.raises(OptionError, match=f"got '{name}'.*"):
            Chat(model, template_variables={name: False})
    Chat(model, template_variables={"reasoning_effort": "none"})


@pytest.mark.parametrize("template", ["{{ messages | nofilter }}", "{{ messages is notest }}", "{{ " + "(" * 3_000 + ")" * 3_000 + " }}"])
def test_a_template_that_jinja_cannot_read_is_refused(template: str) -> None:
    with pytest.raises(ChatError, match="cannot be read: No (filter|test) named|nested too deeply"):
        Chat(chat_model("plain"), template=template)


def test_messages_with_all_marks_are_refused() -> None:
    with pytest.raises(ChatError, match="U\\+FDD0"):
        _ = Chat(chat_model("plain")).user("".join(map(chr, range(0xFDD0, 0xFDF0)))).state


def test_an_argument_may_be_named_as_a_parameter_of_ours() -> None:
    assert shielded(dict, function=1) == {"function": 1}


# -- the server --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def thinking() -> Any:
    with Running(chat_model("Qwen3"), max_tokens=2) as running:
        yield running


ASKED: dict[str, Any] = {"model": "tiny", "temperature": 0}
CHAT = ASKED | {"messages": [{"role": "user", "content": "Hi"}]}


@given(variables=VARIABLES | st.dictionaries(st.just("enable_thinking"), JSON), is_chat=st.booleans())
def test_whatever_a_client_sends_the_status_is_not_500(thinking: Running, variables: dict[str, Any], is_chat: bool) -> None:
    path, body = ("chat/completions", CHAT) if is_chat else ("responses", ASKED | {"input": "Hi"})
    found = thinking.send(f"/v1/{path}", json.dumps(body | {"chat_template_kwargs": variables}))
    usage = found.json().get("usage", {})
    try:
        json.dumps(variables, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a surrogate that stands alone is refused wherever in the body it is
        assert found.status_code == 400
        return
    if set(variables) <= {"enable_thinking"}:
        assert found.status_code == 200
        silent = "<think>\n\n</think>\n\n" if variables.get("enable_thinking") is False else ""
        asked = str(Chat(thinking.model).user("Hi").state) + silent
        assert usage["prompt_tokens" if is_chat else "input_tokens"] == len(thinking.model.tokenizer.encode_special(asked))
    else:
        assert found.status_code == 400
        assert found.json()["error"]["param"] == "chat_template_kwargs"
