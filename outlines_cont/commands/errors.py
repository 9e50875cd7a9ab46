"""The errors of the commands are those of `pipelines`."""

from outlines_cont.pipelines.errors import OutputError, RowError, SetupError, TemplateError

__all__ = ["OutputError", "RowError", "SetupError", "TemplateError"]
