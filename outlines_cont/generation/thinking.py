"""`Thinking`: how a model thinks before its answer: the marks around its thoughts, a limit, a sampler.

`marks_of` finds marks: by the text that a chat template writes for a message with a reasoning, else known marks that are in the template or
that are tokens. `closing_ids`: what ends thoughts that a template has opened. `head_of`: the head of an answer,
such as that of the final channel of gpt-oss.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import eq
from typing import Any

from outlines_cont.chats.template import ChatTemplate
from outlines_cont.checks import check, check_int
from outlines_cont.errors import ChatError, NoChatTemplate, OptionError, TokenizerError
from outlines_cont.interfaces import LanguageModel, Tokenizer
from outlines_cont.models.tokenizer.special_names import control_names_of, special_names_of
from outlines_cont.samplers import BeamSearch, BestOf
from outlines_cont.sampling.params import Sampler
from outlines_cont.state.row import shown_text
from outlines_cont.state.text import encoded_after
from outlines_cont.state.tokens import Tokens

DEFAULT_MAX_THOUGHTS = 2048

# Of models whose templates do not write the reasoning of a message.
_KNOWN = (
    ("<think>\n", "\n</think>\n\n"),
    ("[THINK]", "[/THINK]"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("<thinking>\n", "\n</thinking>\n\n"),
    ("<reasoning>\n", "\n</reasoning>\n\n"),
)
_THOUGHT, _ANSWER = "onethought", "oneanswer"
_LAST_TAG, _LAST_WORD = re.compile(r"(?:<[^<>\s]+>|\[[A-Z_]+\])\s*\Z"), re.compile(r"\S+\s*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How a model thinks before its answer; `thinking=True` is `Thinking()`.

    Attributes:
        begin: the mark that begins the thoughts, such as `"<think>\\n"`; appended before them, unless the prompt ends inside of thoughts.
            None, for both marks, finds them in the chat template, or among the tokens of the model.
        end: the mark that ends them, such as `"\\n</think>\\n\\n"`. The model ends its thoughts by this text without the white space
            around it, or, if it begins with a special token, by that token; what follows of the mark is appended.
        max_tokens: the most tokens of the thoughts; then `end` is appended, as where the model ends its text. None is up to the context.
        sampler: how the thoughts are drawn; None for the sampler of the answer.
    """

    begin: str | None = None
    end: str | None = None
    max_tokens: int | None = DEFAULT_MAX_THOUGHTS
    sampler: Sampler | None = None

    def __post_init__(self) -> None:
        for name in ("begin", "end"):
            mark = getattr(self, name)
            check(name, mark, mark is None or isinstance(mark, str), "a text, or None")
        both = (self.begin is None) == (self.end is None)
        check(
            "end",
            self.end,
            both and (self.end is None or bool(self.end.strip())),
            "a mark that is not blank, given together with `begin`,",
        )
        check_int("max_tokens", self.max_tokens, 1, is_optional=True)
        sampler: Any = self.sampler
        draws = sampler is None or (getattr(sampler, "num_samples", 0) in (None, 1) and not isinstance(sampler, type))
        is_plain = draws and not isinstance(sampler, BeamSearch | BestOf)
        check("sampler", sampler, is_plain, "a sampler that draws one text, such as `samplers.multinomial()`,")

    @classmethod
    def of(cls, given: Any, option: str = "thinking") -> Thinking | None:
        """Return the value of an option `thinking`: a `Thinking`, True, or False or None for none."""
        expected = "True, or a `Thinking(begin=..., end=...)`,"
        check(option, given, given is None or isinstance(given, bool | Thinking), expected)
        return cls() if given is True else given or None

    def with_marks(self, template: ChatTemplate) -> Thinking:
        """Return the same with the marks of a chat template, if it has none."""
        if self.end is not None:
            return self
        begin, end = _known_marks(template.model, template)
        return replace(self, begin=begin, end=end)

    def marks(self, model: LanguageModel) -> tuple[str, str]:
        """Return its marks, or those that are found for a model; raise `OptionError` if there are none."""
        return (self.begin or "", self.end) if self.end is not None else _known_marks(model, None)


def _known_marks(model: LanguageModel, template: ChatTemplate | None) -> tuple[str, str]:
    if template is not None:
        return template.known("thinking_marks", lambda: marks_of(model, template))
    found: tuple[str, str] = model.memo.get("thinking_marks") or model.memo.setdefault(
        "thinking_marks", marks_of(model)
    )
    return found


def marks_of(model: LanguageModel, template: ChatTemplate | None = None) -> tuple[str, str]:
    """Return the marks between which a model thinks, with the white space that belongs to them; `template` in place of its own.

    Raises:
        OptionError: none are known.
    """
    if template is None:
        try:
            template = ChatTemplate.of(model, None, {})
        except NoChatTemplate:
            template = None
    found = None if template is None else _marks_in(template)
    if found is not None:
        return found
    source, names = (template and template.source) or "", control_names_of(model.tokenizer)
    for is_there in (source.__contains__, names.count_in):
        for begin, end in _KNOWN:
            if is_there(begin.strip()) and is_there(end.strip()):
                return begin, end
    raise OptionError(
        f"expected a model that thinks, whose marks stand in its chat template or among its tokens, got {model!r}. "
        "Leave out `thinking`. Or pass the marks: "
        '`thinking=Thinking(begin="<think>\\n", end="\\n</think>\\n\\n")`.',
        "thinking",
    )


def template_marks(template: ChatTemplate) -> tuple[str, str] | None:
    """Return the marks between which a model thinks by a template; None if none are known, or the first is empty."""
    return template.known("begun_marks", lambda: _begun_marks(template))


def _begun_marks(template: ChatTemplate) -> tuple[str, str] | None:
    try:
        begin, end = marks_of(template.model, template)
    except OptionError:
        return None
    return (begin, end) if begin.strip() else None


def closing_ids(template: ChatTemplate, token_ids: Sequence[int]) -> list[int]:
    """Return the tokens that end the thoughts in which the prompt of a reply ends; none where it is not inside of thoughts.

    Some templates open the thoughts of each reply by themselves. An answer without thoughts begins behind them.
    """
    tokenizer, marks = template.model.tokenizer, template_marks(template)
    if marks is None or not is_thinking(tokenizer, token_ids, *marks):
        return []
    return encoded_after(token_ids, Tokens(marks[1], special=True), tokenizer)


def is_thinking(tokenizer: Tokenizer, token_ids: Sequence[int], begin: str, end: str) -> bool:
    """Return whether thoughts between these marks have begun in the last message, and have not ended."""
    ids, begin, end_text = list(token_ids), begin.strip(), end_name(tokenizer, end) or end.strip()
    if control_names_of(tokenizer).count_in(begin):  # tokens, not letters that look like them
        first, last = (_last_place(tokenizer.encode_special(mark), ids) for mark in (begin, end_text))
        return first > last
    # Letters count in the text after the last special token, since others may have written them before.
    table = tokenizer.token_bytes
    start = next((i for i in range(len(ids), 0, -1) if table[ids[i - 1]] is None), 0)
    text = shown_text(ids[start:], tokenizer)
    return text.rfind(begin) > text.rfind(end_text)


def end_name(tokenizer: Tokenizer, end: str) -> str | None:
    """Return the special token that begins the mark at the end of thoughts, if one does."""
    mark = end.strip()
    name = special_names_of(tokenizer).first_in(mark)
    return name if name is not None and mark.startswith(name) else None


def _last_place(part: list[int], token_ids: list[int]) -> int:
    """Return the last index at which `part` occurs in ids; -1 if it does not."""
    return next((i for i in range(len(token_ids) - len(part), -1, -1) if token_ids[i : i + len(part)] == part), -1)


def head_of(template: ChatTemplate) -> str:
    """Return what a template writes between its prompt of a reply and the text of one, with special tokens by their names.

    That is `<|channel|>final<|message|>` for gpt-oss, and nothing for most models. Thoughts that are empty are no head.
    """
    return template.known("answer_head", lambda: _head_in(template))


def _head_in(template: ChatTemplate) -> str:
    tokenizer = template.model.tokenizer
    asked = [{"role": "user", "content": "x"}]
    try:
        opened = shown_text(template.token_ids(asked, is_open=True), tokenizer)
        whole = shown_text(template.token_ids([*asked, {"role": "assistant", "content": _ANSWER}]), tokenizer)
    except (ChatError, TokenizerError):
        return ""
    head, has_answer, _ = whole[len(opened) :].partition(_ANSWER)
    if not whole.startswith(opened) or not has_answer or special_names_of(tokenizer).first_in(head) is None:
        return ""
    marks = _marks_in(template)
    return head if marks is None or marks[1].endswith(head) else ""


def _marks_in(template: ChatTemplate) -> tuple[str, str] | None:
    """Return the marks that a template writes around the reasoning of a reply; None if it writes none."""
    tokenizer = template.model.tokenizer
    asked = [{"role": "user", "content": "x"}]
    reply = {"role": "assistant", "content": _ANSWER, "reasoning_content": _THOUGHT}
    try:
        opened = shown_text(template.token_ids(asked, is_open=True), tokenizer)
        whole = shown_text(template.token_ids([*asked, reply]), tokenizer)
    except (ChatError, TokenizerError):
        return None
    before, has_thought, rest = whole.partition(_THOUGHT)
    end, has_answer, _ = rest.partition(_ANSWER)
    if not has_thought or not has_answer or not end.strip():
        return None
    begin = before[sum(takewhile(bool, map(eq, opened, before))) :]
    if not begin.strip():  # the prompt of a reply has it already
        last = _LAST_TAG.search(before) or _LAST_WORD.search(before)
        begin = "" if last is None else last[0]
    return begin, end
