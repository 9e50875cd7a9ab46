"""Programs as Jinja templates: text, generators, loops and conditions on one state, many rows at once on one engine.

It may import everything below it: generators and what they are made of. Nothing here is imported by them.
"""

from outlines_cont.errors import TemplateBudgetError, TemplateError
from outlines_cont.templates.budget import TemplateBudget
from outlines_cont.templates.result import TemplateResult
from outlines_cont.templates.stream import TemplateEvent, TemplateStream
from outlines_cont.templates.template import Template

__all__ = [
    "Template",
    "TemplateBudget",
    "TemplateBudgetError",
    "TemplateError",
    "TemplateEvent",
    "TemplateResult",
    "TemplateStream",
]
