"""`logits_processor` and `prefix_allowed_tokens_fn`: compile a constraint to a processor or callback for `generate` of transformers. A
constraint is a schema, a type, an expression, or a `str`, which is a regular expression; one with checks beyond the automaton is refused
(but for repeated keys, unless counted), unless `checks="ignore"`. A tokenizer's vocabulary is read once and kept as long as it is alive
(weak references), for each length, end tokens and vocabulary size, with an LRU cache of 64 compiled constraints (`compiler_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import fsm
from fsm import Expression, TokenFSM
from fsm.automaton.checker import checks_of
from fsm.schema.value_check import DISTINCT_KEYS
from outlines_cont.adapters.processor import AllowedTokens, ConstraintProcessor, RowMasks
from outlines_cont.checks import check_one_of, index_of, is_int, knows_its_options
from outlines_cont.errors import MissingEOS, OptionError, shortened
from outlines_cont.models.tokenizer.tokenizer import open_backend
from outlines_cont.policies.constraint import vocabulary_of

EOSTokenIds = int | Sequence[int] | None
Compile = Callable[[Expression], RowMasks]
"""Returns the masks of an expression over one vocabulary. Raises `fsm.EmptyLanguage` and `fsm.VocabularyGap` if nothing satisfies it, or
nothing that the tokens spell."""

_CHECKS = ("refuse", "ignore")
# Of two members with one key the last counts when JSON is read, so a repeated key makes a value fail only where members are counted.
_COUNTING = {"minProperties", "maxProperties"}

_COMPILERS: WeakKeyDictionary[Any, dict[tuple[Any, ...], Compile]] = WeakKeyDictionary()
_LOCK = Lock()


@knows_its_options()
def logits_processor(
    constraint: Any,
    tokenizer: Any,
    *,
    eos_token_ids: EOSTokenIds = None,
    vocab_size: int | None = None,
    checks: str = "refuse",
) -> ConstraintProcessor:
    """Return a logits processor for `model.generate(..., logits_processor=[processor])` of transformers.

    It allows the same tokens as the generators of this package do with `force=False`: in each row those after which some text of the
    constraint can still be written, and an end of text exactly where the text belongs to it. It can be used for any number of calls.

    Args:
        constraint: an expression of `fsm`, a JSON schema as a dict, a pydantic model or another type that `fsm.json_schema` accepts, or a
            pattern as `fsm.regex` reads it.
        tokenizer: the tokenizer of the model, of transformers or of `models`; or a model of `models`, which has the rest, too.
        eos_token_ids: the ids that end a text; None for the tokenizer's. A model may have more: `model.generation_config.eos_token_id`.
        vocab_size: how many tokens the model has logits for, if the tokenizer has more.
        checks: what is done about keywords beyond the automaton (`expression.checks`): "refuse", or "ignore", so that a text may fail them.
            That a key may occur twice in an object that takes any key is accepted: the last one counts when JSON is read.

    Raises:
        OptionError: an argument is none of these, or the constraint has checks.
        fsm.FSMError: the constraint is malformed, or nothing satisfies it that the tokens spell.
        MissingEOS: neither an argument nor the tokenizer names an id that ends a text.
        TokenizerError: the tokens of the tokenizer do not join to the text.

    Cost: the first one of a tokenizer reads its vocabulary (0.5 s for 131,072 tokens); equal constraints are compiled once.
    """
    return ConstraintProcessor(_compiled(constraint, tokenizer, eos_token_ids, vocab_size, checks))


@knows_its_options()
def prefix_allowed_tokens_fn(
    constraint: Any,
    tokenizer: Any,
    *,
    eos_token_ids: EOSTokenIds = None,
    vocab_size: int | None = None,
    checks: str = "refuse",
) -> AllowedTokens:
    """Return a function for `model.generate(..., prefix_allowed_tokens_fn=function)` of transformers.

    It allows the same tokens as `logits_processor` does, which is faster if a state allows many: a function makes a list of them for
    every row and step. Arguments and errors are those of `logits_processor`.
    """
    return AllowedTokens(_compiled(constraint, tokenizer, eos_token_ids, vocab_size, checks))


def _compiled(
    constraint: Any, tokenizer: Any, eos_token_ids: EOSTokenIds, vocab_size: int | None, checks: str
) -> RowMasks:
    expression = _expression_of(constraint, checks)
    return compiler_of(tokenizer, eos_token_ids, vocab_size)(expression)


def _expression_of(constraint: Any, checks: str) -> Expression:
    """Return the language of a constraint that was given in one of the forms of `logits_processor`.

    Raises:
        OptionError: it has none of these forms, or checks that would not be run.
        fsm.FSMError: the schema or the pattern is malformed.
    """
    check_one_of("checks", checks, _CHECKS)
    expression = _to_expression(constraint)
    listed = [] if checks == "ignore" else _binding_checks(expression)
    if listed:
        raise OptionError(
            f"expected a constraint that a token automaton can express, got one with checks ({'; '.join(listed)}): a text that "
            "fails a check has to be changed, and `model.generate` does not rewind. Use `generate.json`, which does; or write the schema "
            "without these keywords; or pass `checks='ignore'` and validate the result yourself.",
            "constraint",
        )
    return expression


def _binding_checks(expression: Expression) -> list[str]:
    """Return descriptions of the checks that might make a value fail."""
    counts = any(line.keyword in _COUNTING for line in expression.report)
    return list(dict.fromkeys(str(check) for check in checks_of(expression.node) if check != DISTINCT_KEYS or counts))


def _to_expression(constraint: Any) -> Expression:
    if isinstance(constraint, Expression):
        return constraint
    is_tokenizer = hasattr(constraint, "vocab_size") or hasattr(
        constraint, "token_bytes"
    )  # a model has the former, too
    if is_tokenizer and not isinstance(constraint, type):
        raise OptionError(
            f"expected an expression, a schema, a type, or a pattern as the constraint, got {type(constraint).__name__}. "
            "The constraint comes first: `logits_processor(Order, tokenizer)`.",
            "constraint",
        )
    if not isinstance(constraint, str):
        return fsm.json_schema(constraint)
    if constraint.lstrip().startswith("{"):
        raise OptionError(
            f"expected an expression, a schema, or a pattern, got {shortened(repr(constraint))}, which looks like a schema as JSON text. "
            "Write `fsm.json_schema(text)` if it is one, `fsm.regex(text)` if it is a pattern, `fsm.choice([text])` if it stands for "
            "itself.",
            "constraint",
        )
    return fsm.regex(constraint)


def compiler_of(tokenizer: Any, eos_token_ids: EOSTokenIds, vocab_size: int | None) -> Compile:
    """Return the compiler for a tokenizer, and remember it; arguments and errors are those of `logits_processor`.

    Cost: 0.2 s for 131,072 tokens the first time, and what `open_backend` takes.
    """
    if vocab_size is not None and not is_int(vocab_size, 1):
        raise OptionError(f"expected a number of tokens as `vocab_size`, got {vocab_size!r}", "vocab_size")
    ends = None if eos_token_ids is None else _ids(eos_token_ids)
    size = len(tokenizer) if hasattr(tokenizer, "__len__") else None  # tokens may have been added since
    key = (size, ends, vocab_size)
    with _LOCK:
        try:
            compilers = _COMPILERS.setdefault(tokenizer, {})
        except TypeError:  # an object without weak references is read each time
            compilers = {}
        if key not in compilers:
            compilers[key] = _read(tokenizer, ends, vocab_size)
        return compilers[key]


def _read(tokenizer: Any, ends: tuple[int, ...] | None, vocab_size: int | None) -> Compile:
    if hasattr(tokenizer, "eos_token_ids") and hasattr(tokenizer, "vocab_size") and hasattr(tokenizer, "tokenizer"):
        vocab_size = tokenizer.vocab_size if vocab_size is None else vocab_size
        ends = tuple(sorted(tokenizer.eos_token_ids)) if ends is None else ends
        tokenizer = tokenizer.tokenizer
    tokens = tokenizer if hasattr(tokenizer, "token_bytes") else open_backend(tokenizer).table
    if ends is None:
        ends = () if tokens.eos_token_id is None else (tokens.eos_token_id,)
    if not ends:
        raise MissingEOS(
            "expected a tokenizer with an end-of-sequence token, by which a model ends a constrained text, got one without. "
            "Pass `eos_token_ids=model.generation_config.eos_token_id`."
        )
    token_bytes = tokens.token_bytes[:vocab_size]
    odd = next((token_id for token_id in ends if not 0 <= token_id < len(token_bytes)), None)
    if odd is not None:
        raise OptionError(
            f"expected ids from 0 to {len(token_bytes) - 1} as `eos_token_ids`, got {odd}. Give the tokenizer of the model that has it.",
            "eos_token_ids",
        )
    vocabulary = vocabulary_of(tokens, ends, vocab_size)
    num_needed = 1 + max([*ends, *(token_id for token_id, data in enumerate(token_bytes) if data)])
    compiled = lru_cache(64)(partial(TokenFSM, vocabulary=vocabulary))

    def masks(expression: Expression) -> RowMasks:
        token_fsm, symbols = compiled(expression), vocabulary.special_ids
        return RowMasks(token_fsm, max([num_needed, *(1 + symbols[name] for name in expression.specials)]))

    return masks


def _ids(eos_token_ids: int | Sequence[int]) -> tuple[int, ...]:
    given = list(eos_token_ids) if isinstance(eos_token_ids, Iterable) else [eos_token_ids]
    found = [index_of(item) for item in given]
    ids = {index for index in found if index is not None}
    if not found or None in found:
        raise OptionError(
            f"expected a token id or some of them as `eos_token_ids`, such as `model.generation_config.eos_token_id`, got {given}",
            "eos_token_ids",
        )
    return tuple(sorted(ids))
