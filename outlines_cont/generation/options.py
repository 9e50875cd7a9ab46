"""`PieceOptions`: the keyword options of every call but `rng` (`max_tokens`, `stop_at`, `policies` and so on), and `Options`, the checked
ones. Unknown names raise `UnknownOption`, with advice for options of other libraries, samplers and generators. `OPTIONS_ELSEWHERE`: the
reverse, advice where an option of a call or a sampler is given to a function that makes a generator. Some checks are used elsewhere, too.

`warn_of_lengths`: warns, once per schema and model, about values of unbounded length, in a call without `max_tokens` (which its caller
checks). `named_lengths` lists the first five of them, with the keywords that would bound them.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict

from fsm import FSMError
from fsm.errors import stacklevel_of_user
from fsm.tokens.cache import ByteCache
from outlines_cont.checks import (
    DEFAULT_MAX_TOKENS,
    check,
    check_draft,
    check_int,
    checked_bool,
    is_int,
    plain,
    unknown_option,
)
from outlines_cont.engine.guidance import Guidance
from outlines_cont.errors import OptionError, ResumeError, UnboundedWarning, UnknownOption
from outlines_cont.generation.tasks.progress import OnProgress
from outlines_cont.generation.thinking import Thinking
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.saved import policy_of, record_of
from outlines_cont.sampling.params import STEPS
from outlines_cont.state.kept_options import GuidanceRecord, KeptOptions, ThinkingRecord
from outlines_cont.state.row import WrittenPiece
from outlines_cont.state.tokens import Tokens

_MAX_NAMED = 5
_WARNED_BYTES = 4 << 20  # of sources that were warned of; what is forgotten is warned of again

Unbounded = Sequence[tuple[str, str]]
"""Values that may be of any length: JSON pointers, and keywords that would bound them; see `fsm.Report`."""


def named_lengths(unbounded: Unbounded) -> str:
    """Return a list of the values with the keywords that would bound them, such as "'#/properties/name' (`maxLength`)"."""
    named = [f"{pointer!r} (`{keyword}`)" for pointer, keyword in unbounded[:_MAX_NAMED]]
    more = f" and {len(unbounded) - _MAX_NAMED} more" if len(unbounded) > _MAX_NAMED else ""
    return f"{', '.join(named)}{more}"


def warn_of_lengths(model: LanguageModel, source: str, unbounded: Unbounded, limit: int | None) -> None:
    """Warn about values of unbounded length, once per schema and model; `limit` is the most tokens of a generated span by default."""
    warned: ByteCache[str, bool] | None = model.memo.get("warned_lengths")
    if warned is None:
        warned = model.memo.setdefault("warned_lengths", ByteCache(_WARNED_BYTES))
    if warned.get(source):
        return
    warned.put(source, True, 100 + len(source))
    warnings.warn(
        f"{named_lengths(unbounded)} may be of any length, and no `max_tokens` is given: a piece is cut after {limit} tokens. "
        "Pass `max_tokens=...`, or bound the values by the keywords in brackets, in pydantic by `Field(max_length=...)`.",
        UnboundedWarning,
        stacklevel=stacklevel_of_user(),
    )


GENERATORS_OWN = object()
"""The default of `draft` and `thinking`: what the generator was made with."""


class PieceOptions(TypedDict, total=False):
    """The options of a generated span (a piece), all of them optional.

    Attributes:
        max_tokens: the most tokens of a piece, forced ones included; None is up to the context. The default is
            `DEFAULT_MAX_TOKENS`, with a `LengthWarning` if that cuts a text.
        stop_at: a text, or several; the piece ends before the first one that occurs.
        min_tokens: until a piece has this number of tokens, end-of-text and stop tokens are masked if another token is allowed.
        keep_stop: end after the stop text instead of before it.
        stop_in_prompt: also stop at a stop text that begins in the prompt; the prompt itself is never cut.
        stop_token_ids: tokens that end the text if it may end there, in addition to those of the model; they are not part of it.
        policies: more policies of each row, such as `policies.ban(["delve"])`; see docs/policies.md.
        heal: token healing: remove the tokens at the end of the prompt that a longer token might have covered, and generate
            their text again; see docs/heal.md. A piece that is resumed was healed when it began.
        guidance: classifier-free guidance by a negative prompt; see docs/guide.md. A list has one, or None, for each batch entry.
        on_progress: called with a `Progress` when a row ends, ten times a second, and at the end; `ProgressBar()` shows a bar. An error
            that it raises ends the call.
        draft: speculative decoding: `"lookup"` (prompt lookup), a smaller model, or an object with `propose`; see docs/draft.md. None
            turns off the draft of the generator.
        thinking: let the model think before its answer: True, or a `Thinking`; see docs/thinking.md. False turns off that of the
            generator. The other options are those of the answer.
        against: of a choice: prompts without content, after which an option that is probable anyway counts less, or `"batch"`, for the
            prompts of the call; of JSON with `exact_fields`: such prompts, for the values of fields. See docs/choices.md.
    """

    max_tokens: int | None
    stop_at: str | Sequence[str] | None
    min_tokens: int
    keep_stop: bool
    stop_in_prompt: bool
    stop_token_ids: Sequence[int]
    policies: Sequence[Policy[Any]]
    heal: bool
    guidance: Guidance | Sequence[Guidance | None] | None
    on_progress: OnProgress | None
    draft: Any
    thinking: Thinking | bool | None
    against: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Checked `PieceOptions`.

    Attributes:
        See `PieceOptions`; `stop_at` is a tuple of texts, and `draft` and `thinking` are `GENERATORS_OWN` if not given. `given`: the names
        of those that were given. `reply`: of a chat, `tool_choice` and `max_calls`, which its calls keep here.
    """

    max_tokens: int | None = DEFAULT_MAX_TOKENS
    given: frozenset[str] = frozenset()
    stop_at: tuple[str, ...] = ()
    min_tokens: int = 0
    keep_stop: bool = False
    stop_in_prompt: bool = False
    stop_token_ids: tuple[int, ...] = ()
    policies: tuple[Policy[Any], ...] = ()
    heal: bool = False
    guidance: Guidance | tuple[Guidance | None, ...] | None = None
    on_progress: OnProgress | None = None
    draft: Any = GENERATORS_OWN
    thinking: Any = GENERATORS_OWN
    against: Any = None
    reply: Any = None

    @property
    def has_max_tokens(self) -> bool:
        """Whether `max_tokens` was given."""
        return "max_tokens" in self.given

    @property
    def is_guided(self) -> bool:
        """Whether some row has classifier-free guidance."""
        found = self.guidance if isinstance(self.guidance, tuple) else (self.guidance,)
        return any(one is not None and not one.is_neutral for one in found)

    @classmethod
    def of(cls, given: Mapping[str, Any], *, resumes: bool = False) -> Self:
        """Return checked options; with `resumes` those that replace the options of a piece that was cut, see `resuming`.

        Raises:
            UnknownOption: an option is unknown.
            OptionError: a value is out of its range. An option that does not fit a single row is the error of that row.
        """
        unknown = next((name for name in given if name not in _CHECKED), None)
        if unknown is not None:
            raise _unknown(unknown)
        values = {name: checked(plain(given[name]), name) for name, checked in _CHECKED.items() if name in given}
        values.setdefault("max_tokens", max(DEFAULT_MAX_TOKENS, values.get("min_tokens", 0)))
        options = cls(**values, given=frozenset(given))
        if not resumes:
            most, least = options.max_tokens, options.min_tokens
            check("min_tokens", least, most is None or least <= most, f"at most `max_tokens`, {most},")
            check_beside_stop(options.stop_at, keep_stop=options.keep_stop, stop_in_prompt=options.stop_in_prompt)
        return options

    # -- what a piece keeps --------------------------------------------------------------------------------------------

    def kept(self, batch: int | None = None) -> Self:
        """Return what a piece keeps of them, in a batch entry if there are several: all but `max_tokens` and `on_progress`."""
        guidance: Any = self.guidance
        if isinstance(guidance, tuple) and batch is not None:
            guidance = guidance[batch]
        return replace(
            self, guidance=guidance, max_tokens=DEFAULT_MAX_TOKENS, given=frozenset(), on_progress=None, heal=False
        )

    def resuming(self, piece: WrittenPiece) -> Self:
        """Return the options with which a piece that was cut goes on: its own, but for those that are given now.

        Raises:
            ResumeError: one that is not given now is no longer known, since a file could not hold it.
            OptionError: a flag about stop texts is given, and the piece has none.
        """
        kept, flags = piece.options, [name for name in ("keep_stop", "stop_in_prompt") if name in self.given]
        options = replace(self, heal=False)
        if kept is not None:
            if isinstance(kept, KeptOptions):
                kept = self._of_file(kept, is_thinking=piece.is_thinking)
            own = {name: getattr(self, name) for name in {*self.given, "max_tokens", "on_progress"} - {"heal"}}
            heal = kept.heal and (self.heal or "heal" not in self.given)
            options = replace(kept, **own, given=self.given, heal=heal, reply=self.reply or kept.reply)
        if not options.stop_at:  # the flags of stop texts that are gone are gone, too
            check_beside_stop((), **{name: getattr(self, name) for name in flags})
            options = replace(options, keep_stop=False, stop_in_prompt=False)
        return options

    def kept_options(self) -> KeptOptions:
        """Return the same as the file of a state holds it."""
        lost: dict[Any, str] = {}
        draft: Any
        thinking: Any
        records = [record_of(policy) for policy in self.policies]
        if None in records:
            lost["policies"] = _names(
                policy for policy, record in zip(self.policies, records, strict=True) if record is None
            )
        draft, thinking = (_OWN_OR_NONE.get(id(one), one) for one in (self.draft, self.thinking))
        if not isinstance(draft, str):
            lost["draft"], draft = _names([draft]), "none"
        if isinstance(thinking, Thinking):
            if thinking.sampler is not None:
                lost["thinking"] = _names([thinking.sampler])
            thinking = ThinkingRecord(begin=thinking.begin, end=thinking.end, max_tokens=thinking.max_tokens)
        if self.against is not None:
            lost["against"] = _names([self.against])
        return KeptOptions(
            stop_at=self.stop_at,
            min_tokens=self.min_tokens,
            keep_stop=self.keep_stop,
            stop_in_prompt=self.stop_in_prompt,
            stop_token_ids=self.stop_token_ids,
            policies=[] if "policies" in lost else [record for record in records if record is not None],
            heal=self.heal,
            guidance=None if self.guidance is None else _guidance_record(self.guidance),
            draft=draft,
            thinking=thinking,
            reply=self.reply,
            lost=lost,
        )

    def _of_file(self, kept: KeptOptions, *, is_thinking: bool) -> Self:
        """Return the options of a piece in a state that was loaded; these are those that are given now."""
        for name, types in kept.lost.items():
            if name in self.given or (name == "thinking" and (not is_thinking or self.thinking is not GENERATORS_OWN)):
                continue
            goes_on = {"policies": "[]", "draft": "None", "against": "None"}
            without = f"; `{name}={goes_on[name]}` goes on without" if name in goes_on else ""
            raise ResumeError(
                f"expected `{name}` for a piece that had one that the file of its state could not hold ({types}), got none. Pass it "
                f"again: `resume(state, {name}=...)`{without}."
            )
        try:
            policies = tuple(policy_of(record) for record in kept.policies) if "policies" not in self.given else ()
            guidance = None if kept.guidance is None else _guidance_of(kept.guidance)
            thinking: Any = kept.thinking
            if isinstance(thinking, ThinkingRecord):
                thinking = self.thinking if "thinking" in kept.lost else Thinking(**dict(thinking))
        except (OptionError, FSMError, re.error, ValueError, OverflowError) as error:
            raise ResumeError(
                f"expected options of a piece that some call has taken, got others from the file of its state: {error}"
            ) from error
        return type(self)(
            stop_at=kept.stop_at,
            min_tokens=kept.min_tokens,
            keep_stop=kept.keep_stop,
            stop_in_prompt=kept.stop_in_prompt,
            stop_token_ids=kept.stop_token_ids,
            policies=policies,
            heal=kept.heal,
            guidance=guidance,
            draft={"own": GENERATORS_OWN, "none": None}.get(kept.draft, kept.draft),
            against=self.against,
            thinking={"own": GENERATORS_OWN, "none": None}.get(thinking, thinking)
            if isinstance(thinking, str)
            else thinking,
            reply=kept.reply,
        )


_OWN_OR_NONE = {id(GENERATORS_OWN): "own", id(None): "none"}


def _names(values: Iterable[Any]) -> str:
    return ", ".join(dict.fromkeys(type(value).__name__ for value in values))


def _guidance_record(guidance: Any) -> GuidanceRecord:
    prompt = guidance.negative_prompt
    if isinstance(prompt, Tokens):
        return GuidanceRecord(negative_prompt=prompt.text, special=prompt.special, scale=guidance.scale)
    return GuidanceRecord(negative_prompt=prompt if isinstance(prompt, str) else [*prompt], scale=guidance.scale)


def _guidance_of(record: GuidanceRecord) -> Guidance:
    prompt: Any = record.negative_prompt
    return Guidance(Tokens(prompt, record.special) if record.special is not None else prompt, record.scale)


def checked_policies(policies: object, option: str = "policies") -> tuple[Policy[Any], ...]:
    """Return policies as a tuple; raise `OptionError` for anything else."""
    found = tuple(policies) if isinstance(policies, Sequence) and not isinstance(policies, str | bytes) else (policies,)
    expected = "a list of policies, such as `[policies.ban(['delve'])]`,"
    return tuple(check(option, policy, isinstance(policy, Policy), expected) for policy in found)


def _checked_guidance(guidance: object, option: str) -> Guidance | tuple[Guidance | None, ...] | None:
    if guidance is None or isinstance(guidance, Guidance):
        return guidance
    found = tuple(guidance) if isinstance(guidance, list | tuple) else (guidance,)
    holds = all(isinstance(one, Guidance | None) for one in found)
    expected = "`Guidance(negative_prompt, scale)`, or a list with one or None for each batch entry,"
    check(option, guidance, holds, expected)
    return found


def texts_of(value: Any, option: str) -> tuple[str, ...]:
    """Return the texts of an option, one or several; raise `OptionError` for anything else."""
    check(option, value, value is None or isinstance(value, Iterable), "a text or a list of texts")
    texts = () if value is None else (value,) if isinstance(value, str) else tuple(value)
    for text in texts:
        check(option, text, isinstance(text, str), "texts")
    return texts


def _checked_ids(token_ids: Any, option: str) -> tuple[int, ...]:
    is_list = isinstance(token_ids, Iterable) and not isinstance(token_ids, str | bytes)
    found: tuple[Any, ...] = tuple(map(plain, token_ids)) if is_list else (None,)
    check(option, token_ids, all(map(is_int, found)), "a list of token ids", "For texts write `stop_at`.")
    return found


# The options by name, each with the function of a value and the name that checks the value, and returns it as `Options` has it.
_CHECKED: dict[str, Callable[[Any, str], Any]] = {
    "max_tokens": lambda value, option: check_int(option, value, 1, is_optional=True),
    "min_tokens": lambda value, option: check_int(option, value, 0),
    "stop_at": texts_of,
    "keep_stop": checked_bool,
    "stop_in_prompt": checked_bool,
    "stop_token_ids": _checked_ids,
    "policies": checked_policies,
    "heal": checked_bool,
    "guidance": _checked_guidance,
    "on_progress": lambda value, option: check(
        option, value, value is None or callable(value), "a function, or `ProgressBar()`,"
    ),
    "draft": lambda value, option: check_draft(value),
    "thinking": Thinking.of,
    "against": lambda value, option: value,  # prompts are checked where they are opened
}

# Options of other libraries, and the corresponding option here.
_ELSEWHERE = {
    "max_new_tokens": "Write `max_tokens`.",
    "max_length": "Write `max_tokens`, which counts the tokens of the piece alone.",
    "min_new_tokens": "Write `min_tokens`.",
    "stop": "Write `stop_at`.",
    "stop_strings": "Write `stop_at`.",
    "seed": "Write `rng`.",
    "guidance_scale": "Write `guidance=Guidance(negative_prompt, scale)`.",
    "negative_prompt": "Write `guidance=Guidance(negative_prompt, scale)`.",
    "negative_prompt_ids": "Write `guidance=Guidance(token_ids, scale)`.",
    "token_healing": "Write `heal=True`.",
    "banned_strings": "Write `policies=[policies.ban([...])]`.",
    "tool": "Write `tools`: `chat.assistant(tools=[function])`.",
    "tools": "Tools belong to conversations: `Chat(model, tools=[...])`, or `chat.assistant(tools=[...])`.",
    "messages": "Messages are the prompt: `generator(messages)`; for a conversation of several turns use `Chat`.",
    "enable_thinking": "Write `thinking=True`; the variable of a chat template is an option of `Chat(model, enable_thinking=True)`.",
    "bad_words_ids": "Write `policies=[policies.ban([...])]` with texts.",
}
_OF_SAMPLERS = (*STEPS[1:], "warpers", "length_penalty", "n", "do_sample", "num_beams", "num_return_sequences")

# Options of the functions that make generators.
_OF_GENERATORS = ("sampler", "force", "end", "max_retries", "max_rejections")
_OF_SCHEMAS = ("whitespace", "strict", "key_order", "formats", "registry", "dialect", "limits")


def _unknown(name: str) -> UnknownOption:
    advice = _ELSEWHERE.get(name, "")
    if name in _OF_SAMPLERS:
        advice = "Sampling options are given when a generator is made: `sampler=samplers.multinomial(temperature=0.7)`."
    elif name in _OF_GENERATORS or name in _OF_SCHEMAS:
        maker = "text(model" if name == "sampler" else "json(model, schema"
        advice = f"Give it to the function that makes the generator: `generate.{maker}, {name}=...)`."
    return unknown_option("a call", name, [*sorted(_CHECKED), "rng"], advice)


# Advice for options of calls and samplers that are passed to a function that makes a generator.
OPTIONS_ELSEWHERE = {
    **dict.fromkeys(_OF_SAMPLERS, "Give it to the sampler, such as `sampler=samplers.multinomial(temperature=0.7)`."),
    **{name: f"It is an option of a call: {advice}" for name, advice in _ELSEWHERE.items()},
    **{name: f"Give it to the call: `generator(prompt, {name}=...)`." for name in (*_CHECKED, "rng")},
}


def check_ids(token_ids: Sequence[int], vocab_size: int, expected: str, where: str, option: str) -> None:
    """Raise `OptionError` for an id that is not a token of the model."""
    odd = next((token_id for token_id in token_ids if not 0 <= token_id < vocab_size), None)
    if odd is not None:
        raise OptionError(f"expected {expected} from 0 to {vocab_size - 1} {where}, got {odd}", option)


def check_one_constraint(given: Mapping[str, object]) -> None:
    """Raise `OptionError` if more than one of the constraints is not None."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise OptionError(f"expected at most one constraint, got {' and '.join(map(repr, named))}", named[1])


def check_beside_stop(stop_at: Sequence[str], **flags: bool) -> None:
    """Raise `OptionError` for a flag about stop texts if no stop text is given."""
    for name, flag in flags.items():
        if flag and not stop_at:
            raise OptionError(f"expected `stop_at` together with `{name}`, got none: pass the text to stop at", name)
