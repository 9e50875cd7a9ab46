"""The options of the functions of `generate`, as types of their keyword arguments: `GeneratorOptions` of all, `ConstraintOptions`,
`CheckOptions`, `JSONOptions` and `CFGOptions` of some. Their defaults stand in `generate`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from fsm import Expression, Limits
from fsm.lark.grammar import Lexer
from fsm.lark.terminal import Ignored
from fsm.schema.context import KeyOrder, Whitespace
from fsm.schema.scalars.string import FormatPolicy
from outlines_cont.generation.thinking import Thinking
from outlines_cont.policies.constraint import EndMode
from outlines_cont.policies.policy import Policy
from outlines_cont.samplers import BeamSearch
from outlines_cont.sampling.params import Sampler


class GeneratorOptions(TypedDict, total=False):
    """The options of every function of `generate`, all of them optional.

    Attributes:
        sampler: how tokens are drawn; greedy by default.
        policies: policies of every call, such as `[policies.ban(["delve"])]`.
        draft: speculative decoding, such as `"lookup"`; see `PieceOptions`.
        thinking: let the model think in free text first: True, or a `Thinking`.
    """

    sampler: Sampler | BeamSearch | None
    policies: Sequence[Policy[Any]]
    draft: Any
    thinking: Thinking | bool | None


class ConstraintOptions(GeneratorOptions, total=False):
    """The options of constrained text: those of `GeneratorOptions`, and two more.

    Attributes:
        force: append text that the constraint determines without sampling it (jump-forward decoding); True by default.
        end: how the text ends where it may: `"free"` with any token that leaves the language, such as a full stop after a number, or
            the model's end of text; `"eos"` only with the latter. The default, None, is `"eos"` for `json`, else `"free"`; that of
            `choice` is told there. See docs/constrain.md.
    """

    force: bool
    end: EndMode | None


class CheckOptions(ConstraintOptions, total=False):
    """The options of text that is checked when a value ends: those of `ConstraintOptions`, and two more.

    Attributes:
        max_retries: how often a row may be rewound if a check fails; then it fails with `CheckFailed`. 50 by default.
        max_rejections: how often of these a whole value that fails is drawn again, in rows that draw at random, before the row goes back to
            single tokens of it; 4 by default, at most `max_retries`. As long as they suffice, values have the distribution of those that
            pass (after the text before them); see `state.rejections`.
    """

    max_retries: int
    max_rejections: int | None


class JSONOptions(CheckOptions, total=False):
    """The options of `json`: those of `CheckOptions`, those of `fsm.json_schema`, which describes them, and two more.

    Attributes:
        exact_fields: choose the values of fields that have few, such as enums and booleans, as wholes by the model's own probabilities,
            conditioned on the values; see docs/choices.md. False by default: they are drawn token by token.
        show_schema: in a conversation, add `fsm.schema_text(schema)` to the message of the system, so that the model sees it.
    """

    exact_fields: bool
    show_schema: bool
    whitespace: Whitespace
    strict: bool
    key_order: KeyOrder
    formats: FormatPolicy
    registry: Mapping[str, dict[str, Any]] | None
    dialect: str | None
    limits: Limits


class CFGOptions(ConstraintOptions, total=False):
    """The options of `cfg`: those of `ConstraintOptions`, and those of `fsm.grammar`, which describes them."""

    ignored: Ignored
    lexer: Lexer | None
    strict: bool
    grammars: Mapping[str, Expression] | None
    limits: Limits
