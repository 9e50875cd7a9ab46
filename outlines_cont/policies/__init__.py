"""Policies: what is steered, as branches."""

from outlines_cont.policies.checked import CheckedConstraint
from outlines_cont.policies.constraint import Constraint
from outlines_cont.policies.free_text import FreeText
from outlines_cont.policies.min_tokens import MinTokens
from outlines_cont.policies.stop import StopAt
from outlines_cont.policies.stop_tokens import StopTokens

__all__ = ["CheckedConstraint", "Constraint", "FreeText", "MinTokens", "StopAt", "StopTokens"]
