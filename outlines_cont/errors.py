"""Exceptions (base `OutlinesContError`) and warnings of `outlines_cont`. A message states what was expected, what was received, where, and
what to do. Also in this file: functions that add to an error its row (`located`), its place in a template (`located_at`), its option
(`located_in`) or the result (`with_result`), and `shortened`, which omits the middle of a long text.

Each exception also derives from the built-in that it resembles. An error that a plain call raises after its rows have ended has the
attributes `results` and `errors`, in the shape of the call's values; they are also set on an error of `fsm` that a call raises.
"""

from __future__ import annotations

from contextlib import suppress


class OutlinesContError(Exception):
    """Base of every error that `outlines_cont` raises on purpose.

    Attributes:
        results: the values of all rows of the call, None for a row that has none; None outside a call.
        errors: the errors of all rows in the same shape, None for a row that ended well; None outside a call.
    """

    results: object = None
    errors: object = None

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the message and the attributes; without this an error would break the process pool that it comes from."""
        return _unpickle, (type(self), self.args, vars(self))


def _unpickle(kind: type[OutlinesContError], args: tuple[object, ...], facts: dict[str, object]) -> OutlinesContError:
    """Return an error without calling its constructor, which may require more than a message."""
    error = OutlinesContError.__new__(kind)  # `kind.__new__` may be that of a built-in that rejects subclasses
    error.args = args
    vars(error).update(facts)
    return error


def located(error: Exception, batch: int, sample: int | None = None) -> Exception:
    """Return the error of one row for a call with several: its message begins with the indices of the row.

    An error of `outlines_cont` is copied, since a state may contain it; any other is returned with a note.
    """
    where = f"batch {batch}" if sample is None else f"batch {batch}, sample {sample}"
    if not isinstance(error, OutlinesContError):
        note = f"This was {where} of the call."
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        return error
    return _unpickle(type(error), (f"{where}: {error}",), vars(error)).with_traceback(error.__traceback__)


def located_at(error: OutlinesContError, place: str, line: int | None, column: int | None) -> OutlinesContError:
    """Return a copy of an error for a template: its message begins with the position, which it also has as `line` and `column`."""
    facts = {**vars(error), "line": line, "column": column}
    return _unpickle(type(error), (f"{place}: {error}",), facts).with_traceback(error.__traceback__)


def located_in(error: OutlinesContError, option: str) -> OutlinesContError:
    """Return a copy of the error of a prompt that is not that of the call, but was given as an option: its message begins with the name."""
    return _unpickle(type(error), (f"`{option}`: {error}",), vars(error)).with_traceback(error.__traceback__)


def with_result(error: Exception, result: object) -> Exception:
    """Return an error with the attribute `result`, unless its class has slots."""
    with suppress(AttributeError):
        error.result = result  # type: ignore[attr-defined]
    return error


def shortened(text: str, most: int = 60) -> str:
    """Return a text of at most `most` characters, with `...` in place of the middle of a longer one."""
    kept = most * 2 // 3
    return text if len(text) <= most else f"{text[:kept]}...{text[kept + 3 - most :]}"


class EmptyPrompt(OutlinesContError, ValueError):
    """A prompt is encoded to no token at all, which a model cannot continue."""


class SpecialTokenWarning(UserWarning):
    """A `str` contains the text of a special token; it was encoded as plain text, not as the control token."""


class ConstraintWarning(UserWarning):
    """A conversation was rewound to before the position where its constraint began, which has lifted the constraint."""


class NoChatTemplate(OutlinesContError, ValueError):
    """The tokenizer of a model has no chat template, and none was given."""


class ChatError(OutlinesContError, ValueError):
    """A conversation cannot continue: the chat template rejects its messages, or a message may not follow the earlier ones."""


class AmbiguousPrompt(OutlinesContError, ValueError):
    """A logits processor was not told where the texts of its rows begin (`of(inputs)`), or they do not begin with these prompts."""


class PromptTypeError(OutlinesContError, TypeError):
    """A prompt is neither a text, nor token ids, messages or a state, nor a list of them."""


class ContextLengthError(OutlinesContError, ValueError):
    """A prompt leaves no room in the model's context; `length` and `limit` are in tokens."""

    def __init__(self, message: str, length: int, limit: int) -> None:
        super().__init__(message)
        self.length = length
        self.limit = limit


class OptionError(OutlinesContError, ValueError):
    """An option of a call or a sampler has a value outside its range; `option` names it."""

    def __init__(self, message: str, option: str) -> None:
        super().__init__(message)
        self.option = option


class ModelNotFound(OptionError):
    """A model name is neither a folder nor an id that transformers finds."""


class UnknownOption(OptionError, TypeError):
    """A call was given an unknown option; the message suggests the closest known one."""


class MissingEOS(OutlinesContError, ValueError):
    """A model has no end-of-sequence token, by which a constrained text ends."""


class MissingTokenizer(OutlinesContError, ValueError):
    """A model folder has no readable tokenizer."""


class UnsupportedModel(OutlinesContError, ValueError):
    """This version cannot run a model exactly, or not in the requested way, such as beam search without batching."""


class RetriesSpent(OutlinesContError, ValueError):
    """The text that a policy rejects cannot be rewritten: its retries are used up, or no other token is allowed."""


class CheckFailed(RetriesSpent):
    """A value failed a check that is not part of the automaton, and the retries are used up or no other value is possible."""


class BanImpossible(RetriesSpent):
    """A banned phrase cannot be avoided: the constraint or the other bans allow no other text, or the retries are used up."""


class InvalidLogits(OutlinesContError, ArithmeticError):
    """A model returned logits that do not define a distribution: NaN, plus infinity, or minus infinity for every token."""


class DeadEnd(OutlinesContError, RuntimeError):
    """The policies of a row allow no token that the model can produce."""


class IncompleteOutput(OutlinesContError, RuntimeError):
    """A constrained text was cut before it conformed; `text` is the text so far, `reason` names the limit that cut it."""

    def __init__(self, message: str, text: str, reason: str) -> None:
        super().__init__(message)
        self.text = text
        self.reason = reason


class UnsupportedBranch(OutlinesContError, RuntimeError):
    """A policy returned a branch that the engine does not support, or the branches of several policies conflict."""


class DeadlockError(OutlinesContError, RuntimeError):
    """All forks wait for shared variables, so that no fork can write them; `names` are these variables."""

    def __init__(self, message: str, names: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.names = names


class ProcessForked(OutlinesContError, RuntimeError):
    """The process was forked while the rows ran: they run on in the parent, and ended in the child."""


class BudgetError(OutlinesContError, RuntimeError):
    """A program (a template, a controller or a script) has reached one of its limits; there is a subclass for each.

    Attributes:
        limit: the name of the limit in `Budget`.
        allowed: the value of the limit.
        reached: the value that exceeded it.
        line, column: where, in a template, from 1 on; None if it is not known.
    """

    limit = ""
    line: int | None = None
    column: int | None = None

    def __init__(self, message: str, allowed: float, reached: float) -> None:
        super().__init__(message)
        self.allowed = allowed
        self.reached = reached


class TokenBudgetError(BudgetError):
    """A program would append more tokens than its budget allows, all its forks together."""

    limit = "tokens"


class ForkBudgetError(BudgetError):
    """A program would have more forks at once than its budget allows, or a search in a template more texts."""

    limit = "forks"


class StepBudgetError(BudgetError):
    """The forks of a program would take more steps than its budget allows: awaits, calls of a controller, iterations of a template."""

    limit = "steps"


class CharacterBudgetError(BudgetError):
    """A template would read or write more characters than its budget allows."""

    limit = "characters"


class CallbackTimeout(BudgetError):
    """One call of a controller took longer than the budget allows."""

    limit = "callback_seconds"


class ProgramTimeout(BudgetError):
    """A program has run for longer than its budget allows."""

    limit = "seconds"


class KVShareError(BudgetError):
    """The keys and values of the forks of a program have more bytes than its budget allows."""

    limit = "kv_bytes"


class TemplateError(OutlinesContError, ValueError):
    """A template cannot be parsed, or fails at run time; `line` and `column` are its position, from 1 on, None if it is not known."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class ProgramCancelled(OutlinesContError, RuntimeError):
    """A fork of a program was cancelled before its end."""


class ScriptError(OutlinesContError, RuntimeError):
    """A script of `control` used a feature that is not supported there; the message names it."""


class ReplayError(ScriptError):
    """A script that was replayed for a fork made other calls than before, so the fork cannot continue."""


class UserCodeError(OutlinesContError, RuntimeError):
    """Code of the user raised something that is not an `Exception`, such as `SystemExit`; or `logits` of a callable model failed.

    The code may be a check, a validator, a policy, a sampler or a warper. A `logits` fails if it raises, or returns anything but an
    array of the expected shape.
    """


class SamplerError(OutlinesContError, ValueError):
    """A sampler or a warper of the user returned an invalid draw: a wrong shape, a token that the mask excludes, invalid logits."""


class ResumeError(OutlinesContError, ValueError):
    """A state cannot be resumed: its last generated span was not cut, or belongs to another constraint."""


class SampleMismatch(OutlinesContError, ValueError):
    """A generator and a state, or two states, differ in their number of samples."""


class BatchMismatch(OutlinesContError, ValueError):
    """Two arguments that should have the same batch size have different ones."""


class NoHypothesis(OutlinesContError, RuntimeError):
    """A beam search found fewer hypotheses for this batch entry than for another one; a plain call returns None for it."""


class SlicingError(OutlinesContError, ValueError):
    """`state.crop` would lose keys and values of tokens that are inside the slice."""


class NotRecomputable(OutlinesContError, ValueError):
    """The keys and values of a row do not follow from its token ids, such as those of an image, and would have to be computed from them."""


class ImageLost(NotRecomputable):
    """The keys and values of an image are gone, and its pixels too, so that the tokens after it cannot be computed."""


class ImageError(OutlinesContError, ValueError):
    """An image cannot be read: a damaged file, a format that is not known, or more bytes or pixels than the limits allow."""


class KVBudgetError(OutlinesContError, MemoryError):
    """The keys and values of the running rows exceed the budget; `needed` and `budget` are in bytes."""

    def __init__(self, message: str, needed: int, budget: int) -> None:
        super().__init__(message)
        self.needed = needed
        self.budget = budget


class TokenizerError(OutlinesContError, ValueError):
    """The exact bytes of a tokenizer's tokens cannot be determined, or its tokens cannot spell a text."""


class ModelMismatch(OutlinesContError, ValueError):
    """A state belongs to another model than the one that should continue it."""


class NotPicklable(OutlinesContError, TypeError):
    """An object was pickled that another process could not rebuild, such as a model that was wrapped by hand."""


class VocabularyMismatch(OutlinesContError, ValueError):
    """A draft model or a tokenizer has another vocabulary than the model that it is used with."""


class LengthWarning(UserWarning):
    """A text was cut after `DEFAULT_MAX_TOKENS` tokens, as no `max_tokens` was given."""


class NoValueWarning(UserWarning):
    """`state.value` was read of a row that has none, since its text was cut or the row failed; `state.values` does not warn."""


class CalibrationWarning(UserWarning):
    """The options of a choice with `against` have less than 1 % of the probability, or are calibrated by the batch itself."""


class SampleSizeWarning(UserWarning):
    """A few of the texts that `samplers.conditional` draws have most of the weight: more `particles` are needed."""


class UnboundedWarning(LengthWarning):
    """A schema has values that may be of any length, and a call gives no `max_tokens`; raised once per schema."""


class DraftWarning(UserWarning):
    """A draft failed; the text is generated without it."""


class StateFileError(OutlinesContError, ValueError):
    """A file is not a saved state, or was truncated or altered; or the folder to write one in does not exist."""


class StateMismatch(OutlinesContError, ValueError):
    """A saved state belongs to another model or tokenizer."""


class SavedError(OutlinesContError, RuntimeError):
    """The error of a row of a loaded state, with the message that was saved."""


class ClosedError(OutlinesContError, RuntimeError):
    """A conversation or its executor was used after `close`."""


class PromptRequired(OutlinesContError, RuntimeError):
    """A token should be sampled in a conversation that has no token yet."""


class ConstraintRequired(OutlinesContError, RuntimeError):
    """A loaded conversation had a constraint, which files do not contain; `start` is the index of the first token that it applies to."""

    def __init__(self, message: str, start: int) -> None:
        super().__init__(message)
        self.start = start


class InferenceRequired(OutlinesContError, RuntimeError):
    """A conversation was prompted with tokens that no `infer` has fed yet; `pending` is their number."""

    def __init__(self, message: str, pending: int) -> None:
        super().__init__(message)
        self.pending = pending


__all__ = sorted(name for name, value in globals().items() if isinstance(value, type) and issubclass(value, Exception))


def __dir__() -> list[str]:
    return __all__
