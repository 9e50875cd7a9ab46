"""`ChatTemplate`: messages as token ids, by the Jinja chat template of a tokenizer or of the user; a tokenizer of mistral-common renders by
itself. Special tokens in a message are marked before the template runs, and encoded as plain text afterwards; so is markup, except in a
reply, since models write it themselves. Options that the template does not read, and uncommon roles that it does not mention, are rejected.

Templates come with models of others, and so run in the sandbox of all templates (`jinja_sandbox`), with plain data, and the settings and
functions that transformers gives them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property
from traceback import walk_tb
from typing import Any, TypeVar, cast

from jinja2 import TemplateError, TemplateSyntaxError, Undefined, meta
from jinja2.environment import Template

from fsm.tokens.cache import ByteCache
from outlines_cont.chats.content_parts import is_text_alone, unknown_kinds
from outlines_cont.chats.message import Message, checked_message, with_parsed_calls
from outlines_cont.errors import ChatError, NoChatTemplate, OptionError, shortened
from outlines_cont.interfaces import LanguageModel
from outlines_cont.jinja_sandbox import BoundedSandbox, TemplateBudget, rendered
from outlines_cont.models.tokenizer.special_names import MARKS, control_names_of, mapped_texts, special_names_of
from outlines_cont.near_names import did_you_mean
from outlines_cont.state.row import shown_text

# Tags that transformers adds to Jinja; they only mark what a reply is, and are read as an `if` that always holds.
_GENERATION = re.compile(r"(\{%[-+]?\s*)(end)?generation(\s*[-+]?%\})")
# Written after the last message, to find where a reply continues; with a space, which a template may strip.
_OPEN_END = "\ue0c4END-OF-OPEN-REPLY\ue0c4 "
# The names of a message's reasoning, the common one first.
_REASONING = ("reasoning_content", "thinking", "reasoning")
_INSTRUCTION = "Answer briefly."
_PARTS = ("First words.", "Other ones.")
# More than any template of a model needs that reads each message some times.
_SECONDS, _CHARACTERS_PER_LETTER = 30.0, 100
# What `Chat` and transformers pass to every template; no variable has one of these names, nor that of a special token.
_GIVEN = {"messages", "tools", "add_generation_prompt", "continue_final_message", "raise_exception", "strftime_now"}
_SPECIAL = {f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
_OF_TOKENIZER = frozenset({"reasoning_effort"})  # the variables of mistral-common
_ROLES = ("system", "user", "assistant", "tool", "developer", "function", "ipython")
# Compiled, templates of 2 kB take 13 bytes for each of their characters, the shortest 4 kB (measured).
_TEMPLATE_BYTES, _BYTES_PER_CHARACTER = 5_000, 20
_FACTS_BYTES, _FACT_BYTES = 1 << 20, 300
_COMPILED: ByteCache[str, Template] = ByteCache(16 << 20)
_NAMES: ByteCache[str, frozenset[str]] = ByteCache(4 << 20)
T = TypeVar("T")


@dataclass(frozen=True)
class ChatTemplate:
    """How the messages of a conversation become token ids.

    Attributes:
        model: the model whose tokenizer encodes.
        source: the Jinja template; None if the tokenizer renders by itself, as those of mistral-common do.
        options: variables of the template in addition to the messages, such as `enable_thinking`. Texts in them are plain text.
    """

    model: LanguageModel
    source: str | None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: LanguageModel, source: str | None, options: Mapping[str, Any], *, tools: bool = False
    ) -> ChatTemplate:
        """Return the template `source`, or that of the tokenizer if it is None.

        The errors are those of `Chat`, and a `ChatError` if it is not valid Jinja.
        """
        if source is None:
            tokenizer = getattr(model.tokenizer, "hugging_face", None)
            found = getattr(tokenizer, "chat_template", None)
            if isinstance(found, Mapping):
                found = found.get("tool_use" if tools and "tool_use" in found else "default")
            if not isinstance(found, str) and type(tokenizer).__name__ == "MistralCommonBackend":
                _check_variables(options, _OF_TOKENIZER, model)
                return cls(model, None, options)
            source = found
        if isinstance(source, str):
            _check_variables(options, names_read(source), model)
            return cls(model, source, options)
        raise NoChatTemplate(
            f"expected a model whose tokenizer has a chat template, got {model!r}, which is probably not a chat "
            "model. Use a chat model (often named `...-Instruct` or `...-Chat`), or pass a Jinja template: `Chat(model, template=...)`."
        )

    def token_ids(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, is_open: bool = False
    ) -> list[int]:
        """Return the ids of a conversation.

        Args:
            messages: at least one.
            tools: as OpenAI describes them: `{"type": "function", "function": {...}}`.
            is_open: end with the beginning of a reply, or, if the last message is one, directly after its content.

        Raises:
            ChatError: the template rejects the messages, or the list is empty.
            TokenizerError: a text cannot be encoded.
        """
        checked = _checked(messages)
        for message in checked:
            check_role(message["role"], self.source)
            if message["role"] == "developer" and not self._names_role("developer"):
                message["role"] = (
                    "system"  # as which most templates know it; they write nothing for a role that they do not know
                )
            if isinstance(message.get("content"), list | tuple):
                message["content"] = self._written_content(message["role"], message["content"])
        parsed = [with_parsed_calls(message) for message in checked]  # as most templates read them
        try:
            return self._token_ids(parsed, tools, is_open)
        except ChatError:
            if parsed == checked:
                raise
        return self._token_ids(checked, tools, is_open)

    def _names_role(self, role: str) -> bool:
        return self.source is not None and re.search(rf"[\"']{re.escape(role)}[\"']", self.source) is not None

    def _written_content(self, role: str, content: Sequence[Message]) -> Any:
        """Return the parts of a message in a form that the template writes: texts as one text, if it takes no parts."""
        lost = unknown_kinds(content, self.source) if self.source is not None else []
        if lost:
            raise ChatError(
                "expected texts and images as the parts of a message, or parts that the chat template names, got one of the type "
                f"{lost[0]!r} of the {role}, which would be lost"
            )
        if not is_text_alone(content) or self._takes_parts(role):
            return content
        return "".join(part["text"] for part in content)

    def _takes_parts(self, role: str) -> bool:
        """Return whether the template writes texts in parts in a message of a role; found out by an example, once for a model."""
        parts: Message = {"role": role, "content": [{"type": "text", "text": text} for text in _PARTS]}
        hello: Message = {"role": "user", "content": "x"}
        example = {"user": [parts], "system": [parts, hello], "assistant": [hello, parts]}.get(role)
        return example is not None and self.known(f"parts_of_{role}", lambda: self._writes_parts(example))

    def _writes_parts(self, example: Sequence[Message]) -> bool:
        try:
            text = shown_text(self._token_ids(example, (), is_open=False), self.model.tokenizer)
        except ChatError:
            return False
        is_list = "type" in text  # a list that is written as Python shows it has the keys of its parts
        return not is_list and all(text.count(part) == 1 for part in _PARTS)

    def _token_ids(self, checked: Sequence[Message], tools: Sequence[Mapping[str, Any]], is_open: bool) -> list[int]:
        goes_on = is_open and checked[-1]["role"] == "assistant"
        flags = {"add_generation_prompt": is_open and not goes_on, "continue_final_message": goes_on}
        if self.source is None:
            return self._ids_of_tokenizer(checked, tools, flags)
        names = control_names_of(self.model.tokenizer)
        written: list[str] = []
        mapped_texts([checked, list(tools), self.options], written.append)
        mark = next((mark for mark in MARKS if not any(mark in text for text in written)), None)
        if mark is None:
            raise ChatError("expected messages without one of the characters U+FDD0 to U+FDEF, got all of them")
        marked = [self._marked(message, mark) for message in checked]
        marked_tools, options = mapped_texts([[*tools], self.options], lambda text: names.marked(text, mark))
        text = self._text(marked, marked_tools, options, flags)
        if mark not in text:
            token_ids = self.model.tokenizer.encode_special(text)
            # Some tokenizers normalise letters before they search for control tokens, and so find some that are not in the text.
            if names.count_in(text) == names.count_of(token_ids):
                return token_ids
        return names.encode_marked(text, mark, self.model.tokenizer)

    def _marked(self, message: Message, mark: str) -> dict[str, Any]:
        """Return a message with `mark` inside of the tokens to encode as plain text: in a reply only special tokens, not markup."""
        tokenizer = self.model.tokenizer
        names = special_names_of(tokenizer) if message["role"] == "assistant" else control_names_of(tokenizer)
        changed: dict[str, Any] = mapped_texts(message, lambda text: names.marked(text, mark))
        return changed

    @property
    def has_system(self) -> bool:
        """Whether the template writes a message of the system that comes first; found out by an example, once for a model."""
        return self.known("has_system", self._writes_system)

    def _writes_system(self) -> bool:
        example = [{"role": "system", "content": _INSTRUCTION}, {"role": "user", "content": "x"}]
        try:
            return _INSTRUCTION in shown_text(self.token_ids(example, is_open=True), self.model.tokenizer)
        except ChatError:
            return False

    def known(self, name: str, find: Callable[[], T]) -> T:
        """Return a fact about this template by its name, which is found out once for a model, as long as the last ones take 1 MiB."""
        facts: ByteCache[Any, Any] | None = self.model.memo.get("template_facts")
        if facts is None:
            facts = self.model.memo.setdefault("template_facts", ByteCache(_FACTS_BYTES))
        found = facts.get_or_put((name, self.source), lambda: (find(),), _FACT_BYTES + len(self.source or ""))
        return cast("T", found[0])

    @cached_property
    def end_token_ids(self) -> frozenset[int]:
        """The special token that the template writes after a reply, such as `<|im_end|>`; empty if it writes none."""
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

    def _text(self, messages: Any, tools: Any, options: Mapping[str, Any], flags: Mapping[str, bool]) -> str:
        assert self.source is not None
        is_open, begins_reply = flags["continue_final_message"], flags["add_generation_prompt"]
        given = {"documents": None, **options, **_named_tokens(self.model), "tools": [*tools] or None}
        given["add_generation_prompt"] = begins_reply
        try:
            text = _rendered(self.source, _open_ended(messages) if is_open else messages, given)
            if is_open:
                text = _up_to_open_end(text)
        except Exception as error:  # a template may raise anything that Python can
            raise failure(error, _shown(messages)) from error
        if not text:
            raise ChatError(
                f"expected a chat template that writes the messages, got one that writes nothing for {_shown(messages)}. It may read a key "
                "that they lack: Jinja writes nothing for it."
            )
        return text

    def _ids_of_tokenizer(self, messages: Sequence[Message], tools: Any, flags: Mapping[str, bool]) -> list[int]:
        tokenizer: Any = self.model.tokenizer
        try:
            ids: list[int] = tokenizer.hugging_face.apply_chat_template(
                messages, tools=[*tools] or None, return_dict=False, **flags, **self.options
            )
        except Exception as error:  # mistral-common raises errors of many kinds
            raise ChatError(f"expected messages that mistral-common takes, got {_shown(messages)}: {error}") from error
        return list(ids)


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
    if isinstance(messages, str) or not messages:
        raise ChatError(
            f"expected a conversation of one message or more, such as [{{'role': 'user', 'content': 'Hi'}}], got {messages!r}"
        )
    return [checked_message(message) for message in messages]


def _named_tokens(model: LanguageModel) -> dict[str, str]:
    """Return the special tokens that templates read as variables, such as `bos_token`."""
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


def names_read(source: str) -> frozenset[str]:
    """Return the variables that a template reads, without those that it sets and the names that are reserved; kept for later calls.

    A template that is not valid Jinja raises `ChatError`.
    """
    return _NAMES.get_or_put(source, lambda: _names_in(source), _TEMPLATE_BYTES + len(source))


def _names_in(source: str) -> frozenset[str]:
    try:
        read = meta.find_undeclared_variables(_sandbox().parse(_as_jinja(source)))  # which also knows the filters
    except TemplateSyntaxError as error:
        raise ChatError(
            f"expected a chat template in Jinja, got one that cannot be read: {error.message}, in line {error.lineno}. Correct it."
        ) from error
    except RecursionError as error:
        raise ChatError("expected a chat template in Jinja, got one that is nested too deeply to be read") from error
    return frozenset(read - _GIVEN - _SPECIAL - _sandbox().globals.keys())


@cache
def _sandbox() -> BoundedSandbox:
    made = BoundedSandbox(undefined=Undefined, trim_blocks=True, lstrip_blocks=True)
    made.globals |= {"raise_exception": _raise_exception, "strftime_now": lambda form: datetime.now().strftime(form)}
    return made


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _as_jinja(source: str) -> str:
    return _GENERATION.sub(lambda tag: f"{tag[1]}{'endif' if tag[2] else 'if true'}{tag[3]}", source)


def _compiled(source: str) -> Template:
    nbytes = _TEMPLATE_BYTES + _BYTES_PER_CHARACTER * len(source)
    return _COMPILED.get_or_put(source, lambda: _sandbox().from_string(_as_jinja(source)), nbytes)


def _rendered(source: str, messages: Sequence[Any], given: Mapping[str, Any]) -> str:
    """Return the text of a conversation; the template gets plain data, since objects have methods that write files."""
    named = [_with_reasoning(message) for message in messages]
    data = json.dumps({**given, "messages": named}, default=lambda value: f"<{type(value).__name__}>")
    budget = TemplateBudget(
        tokens=None, steps=None, characters=10_000_000 + _CHARACTERS_PER_LETTER * len(data), seconds=_SECONDS
    )
    return rendered(_compiled(source), json.loads(data), budget)


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message with its reasoning under both names that templates read."""
    found = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


def _open_ended(messages: Sequence[Any]) -> list[Any]:
    """Return messages with a mark after the text of the last one."""
    *before, last = messages
    content = last.get("content")
    if isinstance(content, list):
        index = max((i for i, part in enumerate(content) if "text" in part), default=None)
        if index is not None:
            part = {**content[index], "text": content[index]["text"] + _OPEN_END}
            return [*before, {**last, "content": [*content[:index], part, *content[index + 1 :]]}]
    if not isinstance(content, str):
        raise ValueError("the last message has no text that could be continued")
    return [*before, {**last, "content": content + _OPEN_END}]


def _up_to_open_end(text: str) -> str:
    """Return a text up to the mark, without white space before it if the template has stripped that after it."""
    before, mark, after = text.rpartition(_OPEN_END.strip())
    if not mark:
        raise ValueError("the template does not write the text of the last message, which is to be continued")
    return before if after.startswith(" ") else before.rstrip()


def _check_variables(options: Mapping[str, Any], read: frozenset[str], model: LanguageModel) -> None:
    """Raise `OptionError` for a variable that a template does not read, or whose name is reserved."""
    reserved = _GIVEN | _SPECIAL | _sandbox().globals.keys() | _named_tokens(model).keys()
    reads = f" It reads {', '.join(sorted(read - reserved)) or 'none'}."
    for name in options:
        if name in reserved:
            raise OptionError(
                f"expected options that the chat template reads, got {name!r}, a reserved name: every template is given it.{reads}",
                "template_variables",
            )
        if name not in read:
            advice = did_you_mean(name, {*read, "tools", "tool_form", "template", "rng"} - {name})
            raise OptionError(
                f"expected options that the chat template reads, got {name!r}, which it does not read.{advice or reads}",
                "template_variables",
            )


def check_role(role: str, source: str | None) -> None:
    """Raise `ChatError` for a role that is neither a common one nor mentioned in the template."""
    if role in _ROLES or (source is not None and re.search(rf"[\"']{re.escape(role)}[\"']", source)):
        return
    raise ChatError(
        f"expected a common role, one of {', '.join(_ROLES)}, or one that the chat template mentions, got {role!r}."
        f"{did_you_mean(role, _ROLES)}"
    )


def failure(error: Exception, shown: str) -> ChatError:
    """Return the `ChatError` for an error that a template raised; `shown` describes the messages."""
    if type(error) is TemplateError:  # by `raise_exception`: the template rejects them
        return ChatError(
            f"expected messages that the chat template accepts, got {shown}, which it rejects: {error}. Templates of some "
            "models require user and assistant in turn, or no system message."
        )
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
    place = f", in line {lines[-1]} of the template" if lines else ""
    return ChatError(
        f"expected a chat template that reads the messages, got one that fails for {shown}: {error}{place}. It may read a key that "
        "the messages lack, or their content may be one that it cannot join, such as a list of parts."
    )
