"""fsm: languages over bytes as values, compiled lazily to token automata. Never imports torch."""

from fsm.errors import (
    BudgetExceeded,
    EmptyLanguage,
    ExpressionError,
    FSMError,
    RegexSyntaxError,
    SchemaError,
    TokenNotAllowed,
    UnknownState,
    UnsupportedRegex,
    VocabularyError,
    VocabularyGap,
)
from fsm.expression import Expression, ReportLine
from fsm.option import choice
from fsm.token_fsm import Explanation, TokenFSM
from fsm.vocabulary import Vocabulary

__all__ = [
    "BudgetExceeded",
    "EmptyLanguage",
    "Explanation",
    "Expression",
    "ExpressionError",
    "FSMError",
    "RegexSyntaxError",
    "ReportLine",
    "SchemaError",
    "TokenFSM",
    "TokenNotAllowed",
    "UnknownState",
    "UnsupportedRegex",
    "Vocabulary",
    "VocabularyError",
    "VocabularyGap",
    "choice",
]
