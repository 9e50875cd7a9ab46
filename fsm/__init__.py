"""fsm: sets of texts as values, compiled lazily to token automata. Never imports torch."""

from fsm import types
from fsm.draw import draw
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
)
from fsm.expression import Expression, Report, ReportLine
from fsm.from_interegular import from_interegular
from fsm.grammar import grammar
from fsm.limits import Limits
from fsm.option import choice
from fsm.pattern import regex
from fsm.schema import json_schema, tool_schema
from fsm.substring import substring
from fsm.token_fsm import Explanation, TokenFSM
from fsm.token_tables import TokenTables
from fsm.until import until
from fsm.vocabulary import Vocabulary

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
    "grammar",
    "json_schema",
    "regex",
    "substring",
    "tool_schema",
    "types",
    "until",
]
