"""`ChatTemplate`: messages as token ids, by the Jinja chat template of a tokenizer or of the user; a tokenizer of mistral-common renders by
itself. Special tokens that are written in a message are marked before the template runs, and encoded as letters afterwards.

Templates run in the sandbox of transformers (Jinja2's `ImmutableSandboxedEnvironment`). Markup in a message is letters, too, except in a
reply, since models write it themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from outlines_cont.chats.jinja import check_option, check_role, failure, names_read
from outlines_cont.chats.message import Message, checked_message
from outlines_cont.errors import ChatError, NoChatTemplate, shortened
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import MARKS, control_names_of, mapped_texts, special_names_of


@dataclass(frozen=True)
class ChatTemplate:
    """How the messages of a conversation become token ids.

    Attributes:
        model: whose tokenizer encodes.
        source: the Jinja template; None where the tokenizer renders by itself, as those of mistral-common do.
        options: what the template may read besides the messages, such as `enable_thinking`.
    """

    model: LanguageModel
    source: str | None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: LanguageModel, source: str | None, options: Mapping[str, Any], *, tools: bool = False
    ) -> ChatTemplate:
        """Return the template `source`, or without one that of the tokenizer.

        Raises:
            NoChatTemplate: neither is there.
            OptionError: the template reads no such option.
            ChatError: it is not valid Jinja.
        """
        if source is None:
            tokenizer = getattr(model.tokenizer, "hugging_face", None)
            found = getattr(tokenizer, "chat_template", None)
            if isinstance(found, Mapping):
                found = found.get("tool_use" if tools and "tool_use" in found else "default")
            if not isinstance(found, str) and type(tokenizer).__name__ == "MistralCommonBackend":
                return cls(model, None, options)
            source = found
        if isinstance(source, str):
            names_read(source)
            for name in options:
                check_option(name, source)
            return cls(model, source, options)
        raise NoChatTemplate(
            f"expected a model whose tokenizer has a chat template, got {model!r}, whose tokenizer has none: it is probably no chat "
            "model. Take one that is (often named `...-Instruct` or `...-Chat`), or give a Jinja template: `Chat(model, template=...)`."
        )

    def token_ids(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, is_open: bool = False
    ) -> list[int]:
        """Return the ids of a conversation.

        Args:
            messages: at least one.
            tools: as OpenAI describes them: `{"type": "function", "function": {...}}`.
            is_open: end with what begins a reply, or, where the last message is one, right after its content.

        Raises:
            ChatError: the template refuses the messages, or the list is empty.
            TokenizerError: a text cannot be encoded.
        """
        checked = _checked(messages)
        for message in checked:
            check_role(message["role"], self.source)
        goes_on = is_open and checked[-1]["role"] == "assistant"
        flags = {"add_generation_prompt": is_open and not goes_on, "continue_final_message": goes_on}
        if self.source is None:
            return self._ids_of_tokenizer(checked, tools, flags)
        names = control_names_of(self.model.tokenizer)
        written: list[str] = []
        mapped_texts([checked, list(tools)], written.append)
        mark = next(mark for mark in MARKS if not any(mark in text for text in written))
        marked = [self._marked(message, mark) for message in checked]
        marked_tools = mapped_texts([*tools], lambda text: names.marked(text, mark))
        text = self._text(marked, marked_tools, flags)
        if mark not in text:
            token_ids = self.model.tokenizer.encode_special(text)
            # Some tokenizers normalise letters before they look for control tokens, and so find some that are not in the text.
            if names.count_in(text) == names.count_of(token_ids):
                return token_ids
        return names.encode_marked(text, mark, self.model.tokenizer)

    def _marked(self, message: dict[str, Any], mark: str) -> dict[str, Any]:
        """Return a message with `mark` in what is to be letters: in a reply only special tokens, as models write markup themselves."""
        tokenizer = self.model.tokenizer
        names = special_names_of(tokenizer) if message["role"] == "assistant" else control_names_of(tokenizer)
        changed: dict[str, Any] = mapped_texts(message, lambda text: names.marked(text, mark))
        return changed

    @cached_property
    def end_token_ids(self) -> frozenset[int]:
        """The special token that the template puts after a reply, such as `<|im_end|>`; none where it puts none there."""
        example = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        try:
            token_ids = self.token_ids(example)
        except ChatError:
            return frozenset()
        table = self.model.tokenizer.token_bytes
        last = next((i for i in range(len(token_ids) - 1, -1, -1) if table[token_ids[i]] is None), None)
        if last is None or self.model.tokenizer.text_bytes(token_ids[last:]).strip():
            return frozenset()
        return frozenset(token_ids[last : last + 1])

    def _text(self, messages: Any, tools: Any, flags: Mapping[str, bool]) -> str:
        given: dict[str, Any] = {**_named_tokens(self.model), **self.options, **flags}
        given |= {"conversations": [messages], "tools": [*tools] or None, "chat_template": self.source}
        try:
            texts = cast(Any, render_jinja_template)(**given)[0]
        except (TemplateError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise failure(error, _shown(messages)) from error
        text: str = texts[0]
        if not text:
            raise ChatError(
                f"expected a chat template that writes the messages, got one that writes nothing for {_shown(messages)}. It may read a key "
                "that they do not have: Jinja writes nothing for it."
            )
        return text

    def _ids_of_tokenizer(self, messages: list[dict[str, Any]], tools: Any, flags: Mapping[str, bool]) -> list[int]:
        tokenizer: Any = self.model.tokenizer
        try:
            ids: list[int] = tokenizer.hugging_face.apply_chat_template(
                messages, tools=[*tools] or None, return_dict=False, **flags, **self.options
            )
        except Exception as error:  # whatever mistral-common finds wrong with them
            raise ChatError(f"expected messages that mistral-common takes, got {_shown(messages)}: {error}") from error
        return list(ids)


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if isinstance(messages, str) or not messages:
        raise ChatError(
            f"expected a conversation of one message or more, such as [{{'role': 'user', 'content': 'Hi'}}], got {messages!r}"
        )
    return [checked_message(message) for message in messages]


def _named_tokens(model: LanguageModel) -> dict[str, str]:
    """Return the special tokens that templates know by name, such as `bos_token`."""
    tokenizer: Any = model.tokenizer
    named = {
        f"{name}_token": tokenizer.special_tokens[token_id]
        for name in ("bos", "eos")
        if (token_id := getattr(tokenizer, f"{name}_token_id", None)) in tokenizer.special_tokens
    }
    found = getattr(getattr(tokenizer, "hugging_face", None), "special_tokens_map", {})
    return {**named, **{name: text for name, text in found.items() if isinstance(text, str)}}


def _shown(messages: Any) -> str:
    return f"roles {shortened(', '.join(str(message.get('role')) for message in messages), 200)}"
