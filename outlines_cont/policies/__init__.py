"""Policies: what is steered, as branches."""

from outlines_cont.policies.checked import CheckedConstraint
from outlines_cont.policies.constraint import Constraint
from outlines_cont.policies.free_text import FreeText
from outlines_cont.policies.stop import StopAt

__all__ = ["CheckedConstraint", "Constraint", "FreeText", "StopAt"]
