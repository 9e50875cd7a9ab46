"""`PromptTemplate`: a Jinja template, checked here and rendered in the sandbox of all templates (`jinja_sandbox`), within limits on length
and time; `RowPrompt` passes it the fields of a row. Includes are refused, and so is a template that reads no variable; a missing field, a
blank message or an exceeded limit fails the row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError, UndefinedError, meta, nodes
from jinja2.environment import Template

import fsm
from fsm.tokens.cache import ByteCache
from outlines_cont.checks import file_text
from outlines_cont.errors import BudgetError, shortened
from outlines_cont.jinja_sandbox import BoundedSandbox, TemplateBudget, rendered
from outlines_cont.near_names import did_you_mean
from outlines_cont.pipelines.outcome import RowError, SetupError, TemplateError, listed, plain
from outlines_cont.pipelines.row_images import RowImages
from outlines_cont.state.image_span import PLACEHOLDER

DEFAULT_SOURCE = "Message: {{ text }}\nRecord: "
CHAT_SOURCE = (
    "Read the message, and answer with a JSON object that fits this schema: {{ schema }}\n\nMessage: {{ text }}"
)
_IMAGE_SOURCE = "Read the {}, and answer with a JSON object that fits this schema: {{{{ schema }}}}"
MAX_CHARACTERS = 1_000_000
MAX_SECONDS = 1.0
_SANDBOX = BoundedSandbox()
# Compiled, a template takes about 5 kB, and up to 10 bytes for each of its characters (measured).
_TEMPLATE_BYTES, _BYTES_PER_CHARACTER = 5_000, 20
_COMPILED: ByteCache[str, Template] = ByteCache(16 << 20)

_ALLOW = "Where the template tests it, as by {% if NAME %}, pass --allow-missing NAME, or `allow_missing=`."


def default_source(*, is_chat: bool, num_images: int = 0) -> str:
    """Return the template of prompts if none is given: the message and, in a chat, a request for a record; or the images of a row."""
    if not num_images:
        return CHAT_SOURCE if is_chat else DEFAULT_SOURCE
    places = PLACEHOLDER * num_images
    return places + (_IMAGE_SOURCE.format("image" if num_images == 1 else "images") if is_chat else "\nRecord: ")


MakePrompt = Callable[[Mapping[str, Any]], Any]
"""Returns the prompt of a row, given its fields: a text, `Tokens`, token ids or messages."""


class PromptTemplate:
    """A prompt template, parsed and checked.

    Attributes:
        source: the text of the template.
        names: the variables that it may read.
        row_names: the fields that it names by `row["due date"]` or `row.due`.
        reads_row: whether it reads `row` in another way, so that any field may be needed.
        max_characters: of a prompt.
        max_seconds: of processor time to render it.
    """

    def __init__(
        self,
        source: str,
        origin: str = "the template",
        *,
        max_characters: int = MAX_CHARACTERS,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        if not isinstance(source, str):
            raise SetupError(f"expected a text as {origin}, such as '{{{{ text }}}}', got {shortened(repr(source))}")
        try:
            tree = _SANDBOX.parse(source)
            self.names = frozenset(meta.find_undeclared_variables(tree) - set(_SANDBOX.globals))
            items = tree.find_all((nodes.Getattr, nodes.Getitem))
            named = [name for item in items if (name := _row_name(item)) is not None]
            self.row_names = frozenset(named)
            self.reads_row = len(named) < sum(node.name == "row" for node in tree.find_all(nodes.Name))
            has_includes = any(True for _ in meta.find_referenced_templates(tree))
            _compiled(source)
        except TemplateSyntaxError as error:
            raise SetupError(
                f"expected a Jinja template in {origin}, but line {error.lineno} is malformed: {error.message}. "
                "A value of the row is written {{ text }}."
            ) from error
        except (RecursionError, SyntaxError, MemoryError) as error:
            raise SetupError(f"expected a Jinja template in {origin}, but it is nested too deeply") from error
        if has_includes:
            raise SetupError(
                f"expected one template without other files, got an include, import or extends in {origin}."
            )
        self._origin = origin
        self.source, self.max_characters, self.max_seconds = source, max_characters, max_seconds

    @classmethod
    def from_file(cls, path: str | Path) -> PromptTemplate:
        """Read a template; one line break at the end of the file does not count. Raise `SetupError` if it cannot be used."""
        return cls(file_text(path, "as the prompt template", SetupError), repr(str(path)))

    def check_used(self, *, has_images: bool = False) -> None:
        """Raise `SetupError` for a template that reads nothing of a row; images in the prompt are something."""
        if not self.names and not has_images:
            raise SetupError(
                f"expected a template that uses a value of the row, such as {{{{ text }}}}, but {self._origin} uses none: "
                "every prompt would be the same."
            )

    def render(self, values: Mapping[str, Any]) -> str:
        """Return the prompt of one row, given its values by name.

        Raises:
            TemplateError: a name is missing, a limit is exceeded, or an expression fails.
        """
        work = max(10_000_000, 20 * self.max_characters)
        budget = TemplateBudget(tokens=None, steps=None, characters=work, seconds=self.max_seconds)
        try:
            return rendered(_compiled(self.source), values, budget, self._check_length)
        except TemplateError:
            raise
        except BudgetError as error:
            raise TemplateError(
                f"expected a template that is filled in within {error.allowed:,} {error.limit}, but it takes more. Leave out nested loops "
                f"and huge results, or raise the limit: `PromptTemplate(source, max_{error.limit}=...)`."
            ) from error
        except UndefinedError as error:
            raise TemplateError(f"{error.message}; the row has {listed(values)}") from error
        except Exception as error:  # expressions of a template may raise anything that Python can
            raise TemplateError(f"the template fails on this row with {type(error).__name__}: {error}") from error

    def _check_length(self, length: int) -> None:
        if length > self.max_characters:
            raise TemplateError(
                f"expected a prompt of at most {self.max_characters} characters, the limit `max_characters`, but the text is longer. "
                "Shorten the template or the row."
            )


def _compiled(source: str) -> Template:
    nbytes = _TEMPLATE_BYTES + _BYTES_PER_CHARACTER * len(source)
    return _COMPILED.get_or_put(source, lambda: _SANDBOX.from_string(source), nbytes)


def _row_name(item: nodes.Node) -> str | None:
    """Return the name of the field that an expression such as `row.due` or `row["due date"]` reads, else None."""
    match item:
        case nodes.Getattr(node=nodes.Name(name="row"), attr=name) if not hasattr(dict, name):
            return str(name)
        case nodes.Getitem(node=nodes.Name(name="row"), arg=nodes.Const(value=str(name))):
            return name
    return None


@dataclass(frozen=True, slots=True)
class RowPrompt:
    """Renders a template with the fields of a row, and with the names `text` (its `text_field`), `row` (all fields), `schema` and
    `schema_text`, the schema in a short form.

    `images` are the fields with images, which are no text. A field that the template names may be missing, None or blank only if it is in
    `allow_missing`, or that is True; one that is missing or
    None is then an empty text, so that no prompt says "None". `SetupError` for names in `allow_missing` that the template does not name.
    """

    template: PromptTemplate
    text_field: str
    json_schema: str
    allow_missing: Collection[str] | bool = ()
    images: RowImages = RowImages()  # noqa: RUF009  # frozen

    def __post_init__(self) -> None:
        allowed = [] if isinstance(self.allow_missing, bool) else self.allow_missing
        if isinstance(allowed, str):
            raise SetupError(f"expected `allow_missing` to be True or a list of names, got the text {allowed!r}")
        known = {*self._variables, *self._named, *self.images.names}
        unknown = next((name for name in allowed if name not in known), None)
        if unknown is not None:
            raise SetupError(
                f"expected fields that the template names ({listed(sorted(known))}) in `allow_missing`, got {unknown!r}."
                f"{did_you_mean(unknown, known)}"
            )

    @property
    def needed(self) -> list[str]:
        """The fields that each row must have, with a value."""
        return [*dict.fromkeys([*self._read, *self.images.needed])]

    @property
    def _read(self) -> list[str]:
        """Those of them that the template reads."""
        if isinstance(self.allow_missing, bool):
            return [] if self.allow_missing else self._named
        allowed = {self._variables.get(name, name) for name in self.allow_missing}
        return [name for name in self._named if name not in allowed]

    @property
    def _variables(self) -> dict[str, str]:
        """The fields that the template reads, by the names of its variables."""
        names = sorted(self.template.names - {"row", "schema", "schema_text"})
        return {name: self.text_field if name == "text" else name for name in names}

    @property
    def _named(self) -> list[str]:
        return [*dict.fromkeys([*self._variables.values(), *sorted(self.template.row_names)])]

    def text(self, fields: Mapping[str, Any], marked: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
        """Return the prompt of a row; `marked` inserts marks into its values, so that no special token is read in them.

        Raises:
            RowError: a field that the template names is missing, None or blank, or the message is not a text.
            TemplateError: the template fails on the row, or exceeds a limit.
        """
        shown = [*fields, *self._named] if self.template.reads_row else self._named
        row = {name: plain(fields.get(name), name) for name in shown}
        for name in self._read:
            self._check(name, row[name], fields)
        row |= {name: "" for name in self._named if row[name] is None}
        variables = {variable: row[name] for variable, name in self._variables.items()}
        of_schema = {"schema": self.json_schema}
        if "schema_text" in self.template.names:
            of_schema["schema_text"] = fsm.schema_text(self.json_schema)
        return self.template.render(marked({**variables, "row": row, **of_schema}))

    def _check(self, name: str, value: Any, fields: Mapping[str, Any]) -> None:
        is_message = name == self._variables.get("text")
        if name not in fields:
            advice = "Name the field of the message with --text-field, or `text_field=`." if is_message else _ALLOW
            raise RowError(f"expected a field {name!r}, got {listed(fields) or 'no fields'}. {advice}")
        is_text = isinstance(value, str)
        if value is None or (is_text and not value.strip()) or (is_message and not is_text):
            got = "None" if value is None else "a blank one" if is_text else type(value).__name__
            expected, advice = ("text", "") if is_message else ("value", f". {_ALLOW}")
            raise RowError(f"expected a {expected} in the field {name!r}, got {got}{advice}")
