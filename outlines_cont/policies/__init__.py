"""Policies: rules that steer one piece of a row by branches (rewind, append, sample under a mask), as the controllers of AICI do.

Constraints, free text, stop texts, bans and replacements are policies, and users write their own. Imports `text_search`, `state`, the
tokenizers and `fsm`.
"""

from typing import TYPE_CHECKING

from outlines_cont.near_names import module_attributes
from outlines_cont.policies.ban import Ban, ban
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.constraint import CheckedConstraint, Constraint
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.policies.replace import Replace, replace
from outlines_cont.policies.stop import FreeText, StopAt
from outlines_cont.text_search.phrase_trie import load_phrases

__all__ = [
    "Ban",
    "Branch",
    "CheckedConstraint",
    "Constraint",
    "FreeText",
    "Policy",
    "Replace",
    "RowView",
    "StopAt",
    "TokenSet",
    "ban",
    "load_phrases",
    "replace",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers would take it as a promise that all names exist
    __getattr__ = module_attributes(__name__, __all__)
