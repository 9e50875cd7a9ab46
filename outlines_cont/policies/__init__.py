"""Policies: what is steered, as branches."""

from outlines_cont.policies.ban import Ban, ban
from outlines_cont.policies.branch import Branch, TokenSet
from outlines_cont.policies.checked import CheckedConstraint
from outlines_cont.policies.constraint import Constraint
from outlines_cont.policies.free_text import FreeText
from outlines_cont.policies.policy import Policy
from outlines_cont.policies.replace import Replace, replace
from outlines_cont.policies.row_view import RowView
from outlines_cont.policies.stop import StopAt
from outlines_cont.text_search.phrase_list import load_phrases

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
