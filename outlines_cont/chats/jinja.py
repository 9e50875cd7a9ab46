"""Checks of chat templates: `names_read`, the variables that a Jinja template reads (by its syntax tree; the last 64 templates are cached),
`check_option` and `check_role`, and `failure`, the `ChatError` of a template that fails, with its line.
"""

from __future__ import annotations

import re
from functools import lru_cache
from traceback import walk_tb

from jinja2 import TemplateError, TemplateSyntaxError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outlines_cont.errors import ChatError, OptionError
from outlines_cont.unknown_option import did_you_mean

# Tags that transformers adds to Jinja; they only mark what a reply is.
_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
# What `Chat` and transformers pass to every template.
_GIVEN = {"messages", "add_generation_prompt", "continue_final_message", "raise_exception", "strftime_now"}
_ROLES = ("system", "user", "assistant", "tool", "developer", "function", "ipython")


@lru_cache(maxsize=64)
def names_read(source: str) -> frozenset[str]:
    """Return the names that a template reads without setting them, except for those that every template is given.

    Raises:
        ChatError: it is not valid Jinja.
    """
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        tree = environment.parse(_GENERATION.sub("", source))
    except TemplateSyntaxError as error:
        raise ChatError(
            f"expected a chat template in Jinja, got one that cannot be read: {error.message}, in line {error.lineno}. Mend the template."
        ) from error
    return frozenset(meta.find_undeclared_variables(tree) - _GIVEN)


def check_option(name: str, source: str) -> None:
    """Raise `OptionError` where a template reads no such name."""
    read = names_read(source)
    if name in read and name != "tools":
        return
    known = [*read, "tools", "tool_form", "template", "rng"]
    advice = did_you_mean(name, known) or f" It reads {', '.join(sorted(read)) or 'none'}."
    raise OptionError(
        f"expected options that the chat template reads, got {name!r}, which it does not read.{advice}", name
    )


def check_role(role: str, source: str | None) -> None:
    """Raise `ChatError` for a role that is neither a common one nor mentioned in the template."""
    if role in _ROLES or (source is not None and re.search(rf"[\"']{re.escape(role)}[\"']", source)):
        return
    raise ChatError(
        f"expected a role that models know, one of {', '.join(_ROLES)}, or one that the chat template mentions, got {role!r}."
        f"{did_you_mean(role, _ROLES)}"
    )


def failure(error: Exception, shown: str) -> ChatError:
    """Return the `ChatError` for an error that a template raised, for messages that are `shown`."""
    if type(error) is TemplateError:  # by `raise_exception`: the template refuses them
        return ChatError(
            f"expected messages that the chat template takes, got {shown}, and it says: {error}. Templates of some "
            "models want user and assistant in turn, or no system message."
        )
    lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == "<template>"]
    place = f", in line {lines[-1]} of the template" if lines else ""
    return ChatError(
        f"expected a chat template that reads the messages, got one that fails for {shown}: {error}{place}. It may read a key that "
        "messages do not have, or the messages have content that it cannot join, such as a list of parts."
    )
