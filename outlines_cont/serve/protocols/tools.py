"""The tools of a chat request, and which of them may be called, as pydantic models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from outlines_cont.serve.protocols.messages import Strict


class Function(Strict):
    """A function that may be called."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: Annotated[Any, Field(exclude=True)] = None  # changes nothing


class FunctionTool(Strict):
    """A tool that is a function."""

    type: Literal["function"]
    function: Function
    cache_control: Annotated[Any, Field(exclude=True)] = None  # changes nothing

    @property
    def name(self) -> str:
        """Its name."""
        return self.function.name

    @property
    def is_strict(self) -> bool:
        """Whether what nothing enforces is an error."""
        return bool(self.function.strict)


class Grammar(Strict):
    """A language: in Lark, or a regular expression."""

    syntax: Literal["lark", "regex"]
    definition: str


class TextFormat(Strict):
    """Any text."""

    type: Literal["text"]


class GrammarFormat(Strict):
    """A text of a language."""

    type: Literal["grammar"]
    grammar: Grammar


class Custom(Strict):
    """A tool that takes a text."""

    name: str
    description: str | None = None
    format: TextFormat | GrammarFormat | None = None


class CustomTool(Strict):
    """A custom tool."""

    type: Literal["custom"]
    custom: Custom

    @property
    def name(self) -> str:
        """Its name."""
        return self.custom.name

    @property
    def is_strict(self) -> bool:
        """Whether what nothing enforces is an error: a grammar is enforced."""
        return False


Tool = Annotated[FunctionTool | CustomTool, Field(discriminator="type")]


class Named(Strict):
    """The name of a tool."""

    name: str


class NamedFunction(Strict):
    """The function that is to be called."""

    type: Literal["function"]
    function: Named

    @property
    def names(self) -> list[str]:
        """The names of what may be called."""
        return [self.function.name]


class NamedCustom(Strict):
    """The custom tool that is to be called."""

    type: Literal["custom"]
    custom: Named

    @property
    def names(self) -> list[str]:
        """The names of what may be called."""
        return [self.custom.name]


class AllowedTools(Strict):
    """Some of the tools, and whether one must be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedFunction | NamedCustom] = Field(min_length=1)


class AllowedChoice(Strict):
    """The tools that may be called."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    @property
    def names(self) -> list[str]:
        """The names of the tools that may be called, and `auto` if none must be."""
        allowed = self.allowed_tools
        return [*(["auto"] if allowed.mode == "auto" else []), *(name for tool in allowed.tools for name in tool.names)]


ToolChoice = Literal["none", "auto", "required"] | NamedFunction | NamedCustom | AllowedChoice
