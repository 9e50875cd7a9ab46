"""Programs as Jinja templates: text, generators, loops and conditions on one state, many rows at once on one engine.

Templates run in a sandbox, and within a budget. Imports `generate`, `generation` and the layers below them.
"""

from typing import TYPE_CHECKING

from outlines_cont.errors import TemplateError
from outlines_cont.jinja_sandbox import TemplateBudget
from outlines_cont.near_names import module_attributes
from outlines_cont.templates.program import TemplateResult, TemplateStream
from outlines_cont.templates.template import Template

__all__ = [
    "Template",
    "TemplateBudget",
    "TemplateError",
    "TemplateResult",
    "TemplateStream",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers would take it as a promise that all names exist
    __getattr__ = module_attributes(__name__, __all__)
