"""fsm: regular and context-free languages as values, and the token masks that constrain a language model to them.

Languages come from regular expressions, JSON schemas and Lark grammars; masks from lazily determinised automata, by Brzozowski derivatives.
Never imports torch.
"""

from typing import TYPE_CHECKING

from fsm import types
from fsm.errors import (
    BudgetExceeded,
    EmptyLanguage,
    ExpressionError,
    FSMError,
    GrammarError,
    RegexSyntaxError,
    SchemaError,
    SchemaWarning,
    TerminalCollision,
    TokenNotAllowed,
    UnknownState,
    UnsupportedPython,
    UnsupportedRegex,
    VocabularyError,
    VocabularyGap,
    did_you_mean,
)
from fsm.expression import Expression, Report, ReportLine, from_interegular
from fsm.languages import choice, json_string, substring, until
from fsm.lark.gbnf import gbnf
from fsm.lark.grammar import grammar
from fsm.limits import Limits
from fsm.pattern.python_pattern import regex
from fsm.schema import json_schema, tool_schema
from fsm.schema.schema_text import schema_text
from fsm.tags import special, tag, triggered
from fsm.tokens.explanation import Explanation
from fsm.tokens.token_fsm import TokenFSM, draw
from fsm.tokens.token_tables import TokenTables
from fsm.tokens.vocabulary import Vocabulary

__all__ = [
    "BudgetExceeded",
    "EmptyLanguage",
    "Explanation",
    "Expression",
    "ExpressionError",
    "FSMError",
    "GrammarError",
    "Limits",
    "RegexSyntaxError",
    "Report",
    "ReportLine",
    "SchemaError",
    "SchemaWarning",
    "TerminalCollision",
    "TokenFSM",
    "TokenNotAllowed",
    "TokenTables",
    "UnknownState",
    "UnsupportedPython",
    "UnsupportedRegex",
    "Vocabulary",
    "VocabularyError",
    "VocabularyGap",
    "choice",
    "draw",
    "from_interegular",
    "gbnf",
    "grammar",
    "json_schema",
    "json_string",
    "regex",
    "schema_text",
    "special",
    "substring",
    "tag",
    "tool_schema",
    "triggered",
    "types",
    "until",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers would take it as a promise that all names exist

    def __getattr__(name: str) -> object:
        near = did_you_mean(name, () if name.startswith("_") else __all__)
        raise AttributeError(f"module 'fsm' has no attribute {name!r}.{near}", name=name, obj=None)
