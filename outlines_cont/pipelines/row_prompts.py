"""`RowPrompts`: the prompts of rows for one model: by a Jinja template or a function, as plain text or as a message of a conversation, with
the images of a row in their places. Special tokens of the template are control tokens, those in values of a row are letters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, Self, cast

from outlines_cont.errors import OptionError
from outlines_cont.generation.prompt import Item
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import (
    MARKS,
    SpecialNames,
    control_names_of,
    encode_letters,
    mapped_texts,
)
from outlines_cont.pipelines.outcome import RowError
from outlines_cont.pipelines.prompt_template import MakePrompt, PromptTemplate, RowPrompt, default_source
from outlines_cont.pipelines.row_images import RowImages
from outlines_cont.sampling.random_stream import RandomStream, open_seeds
from outlines_cont.state.image_span import PLACEHOLDER
from outlines_cont.state.seeing import image_row
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.tokens import Given, Tokens, start_ids

Ask = Callable[[Any], SequenceState]
_MARK = MARKS[0]
_PLACES = SpecialNames({0: PLACEHOLDER})


@dataclass(frozen=True, slots=True)
class RowPrompts:
    """What makes the prompts of rows.

    Attributes:
        model: the model that reads them.
        text_field: the field of a row with the message.
        images: the fields with images.
        ask: returns the state in which a record begins after the content of a message; None for plain text.
        begun: a text that identifies the conversation before it.
        template: renders the fields of a row; None if `function` makes its prompt.
        function: returns the prompt of a row.
    """

    model: LanguageModel
    text_field: str
    images: RowImages
    ask: Ask | None
    begun: str
    template: RowPrompt | None
    function: MakePrompt | None = None

    @classmethod
    def of(
        cls,
        model: LanguageModel,
        prompt: str | PromptTemplate | MakePrompt | None,
        json_schema: str,
        *,
        text_field: str = "text",
        images: Any = None,
        ask: Ask | None = None,
        begun: str = "",
        allow_missing: Collection[str] | bool = (),
    ) -> Self:
        """Return the prompts of `Extractor(model, schema, prompt, ...)`; raise what makes its arguments unfit."""
        if callable(prompt):
            if allow_missing:
                raise OptionError(
                    "expected `allow_missing` with a template, got it with a function, which tests the fields itself",
                    "allow_missing",
                )
            return cls(model, text_field, _checked(RowImages.of(images), model), ask, begun, None, prompt)
        found = _checked(RowImages.of(images, allow_missing), model)
        if prompt is None or (isinstance(prompt, str) and not prompt):
            prompt = default_source(is_chat=ask is not None, num_images=len(found.names))
        template = prompt if isinstance(prompt, PromptTemplate) else PromptTemplate(prompt)
        template.check_used(has_images=bool(found))
        found.check_places(template.source)
        row_prompt = RowPrompt(template, text_field, json_schema, allow_missing, found)
        return cls(model, text_field, found, ask, begun, row_prompt)

    @property
    def source(self) -> str:
        """A text that identifies them: the template, with the conversation, or the name of the function."""
        made = self.function
        if made is not None:
            return f"{getattr(made, '__module__', '')}.{getattr(made, '__qualname__', repr(made))}"
        assert self.template is not None
        return (
            f"{self.template.template.source}\0{self.begun}" if self.ask is not None else self.template.template.source
        )

    @property
    def needed(self) -> list[str]:
        """The fields that each row must have."""
        return self.images.needed if self.template is None else self.template.needed

    @property
    def plain_field(self) -> str:
        """The field of a row that is no dict: the one with the message, or with the image, if no message is needed."""
        reads_text = self.function is not None or self.text_field in self.needed
        return self.text_field if reads_text or len(self.images.names) != 1 else self.images.names[0]

    def is_row(self, value: Any) -> bool:
        """Return whether a value that is no dict is a row by itself: a text, or an image."""
        return isinstance(value, str) or (self.plain_field in self.images.names and _is_image(value))

    def is_array_of_image(self, name: str, value: Any) -> bool:
        """Return whether a value of a dict is the array of one image, or an image of PIL, and no column."""
        return name in self.images.names and (getattr(value, "ndim", 0) in (2, 3) or hasattr(value, "getexif"))

    def fields(self, row: Any) -> Mapping[str, Any]:
        """Return the fields of a row; raise `RowError` if it is neither a text nor a dict."""
        if isinstance(row, Mapping):
            return row
        if not self.is_row(row):
            raise RowError(f"expected a row that is a text or a dict of fields, got {type(row).__name__}")
        return {self.plain_field: row}

    def of_row(self, fields: Mapping[str, Any]) -> Any:
        """Return the prompt of a row.

        Raises:
            RowError: it lacks a field, or the template fails.
            ImageError: an image cannot be read.
        """
        if self.function is not None:
            return self._of_function(self.function, fields)
        assert self.template is not None
        if not self.images:
            # A message has no special tokens, so its values need no marks.
            text = self.template.text(fields, dict if self.ask is not None else self._marked)
            return self._encoded(text) if self.ask is None else self.ask(text)
        self.images.sources(fields)  # a row without an image fails for that
        text = self.template.text(self.images.readable(fields), self._marked if self.ask is None else _with_places)
        texts, images = self.images.placed(text, fields)
        if self.ask is None:
            return self._seen([self._encoded_part(part, i) for i, part in enumerate(texts)], images)
        first, *rest = (part.replace(_MARK, "") for part in texts)
        parts: list[Any] = [first]
        for image, text in zip(images, rest, strict=True):
            parts += [{"type": "image", "image": image}, text]
        return self.ask([part for part in parts if part] if images else first)

    def _of_function(self, function: MakePrompt, fields: Mapping[str, Any]) -> Any:
        prompt = function(fields)
        if not self.images:
            return prompt
        if not isinstance(prompt, str | Tokens):
            raise RowError(
                f"expected a text with `{PLACEHOLDER}` for each image from the function of the prompt, as there is `images`, got "
                f"{type(prompt).__name__}. Leave out `images` for messages that have their images."
            )
        texts, images = self.images.placed(prompt if isinstance(prompt, str) else prompt.text, fields)
        return self._seen(texts if isinstance(prompt, str) else [replace(prompt, text=part) for part in texts], images)

    def _seen(self, parts: list[Any], images: list[Any]) -> Item:
        """Return the state of texts with images between them, of which nothing is fed yet."""
        (seed,) = open_seeds(0, 1)
        row = image_row(self.model, parts, [self.model.read_image(image) for image in images], RandomStream(seed))
        return SequenceState(self.model, ((row,),), seed)

    def _marked(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a row with a mark inside of each text that looks like a special token, so that it is encoded as letters."""
        names = control_names_of(self.model.tokenizer)
        found = cast(dict[str, Any], mapped_texts(values, lambda text: names.marked(text, _MARK)))
        return _with_places(found) if self.images else found

    def _encoded(self, prompt: str) -> Item:
        """Return a prompt in which special tokens of the template are control tokens, and those of values letters."""
        if _MARK not in prompt:
            return Tokens.of(prompt, special=True)
        token_ids = control_names_of(self.model.tokenizer).encode_marked(prompt, _MARK, self.model.tokenizer)
        start = start_ids(self.model)
        return token_ids if token_ids[: len(start)] == start else [*start, *token_ids]

    def _encoded_part(self, part: str, index: int) -> Given:
        """Return a part of a prompt in the same way; the first one is its start."""
        if _MARK not in part or not index:
            found = self._encoded(part)
            return tuple(found) if isinstance(found, list) else cast(Given, found)
        tokenizer = self.model.tokenizer

        def inside(text: str) -> list[int]:
            return encode_letters(text.replace(_MARK, ""), tokenizer)

        return tuple(control_names_of(tokenizer).encode(part, inside, inside))


def _with_places(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a row with a mark inside of each text that looks like the place of an image."""
    return cast(dict[str, Any], mapped_texts(values, lambda text: _PLACES.marked(text, _MARK)))


def _checked(images: RowImages, model: LanguageModel) -> RowImages:
    """Return the images of rows; `UnsupportedModel` if there are some and the model takes none."""
    if images:
        _ = model.image_placeholder
    return images


def _is_image(row: Any) -> bool:
    """Return whether a row that is no dict may be an image: a path, bytes, or an image of PIL."""
    return isinstance(row, PathLike | bytes | bytearray | memoryview) or hasattr(row, "getexif")
