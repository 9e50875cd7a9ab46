"""The content of a message as chat templates read it: a text, or parts. `read_content` reads what users write: texts and images in a
list, and parts in the forms of OpenAI, Anthropic, MCP and transformers; `result_content` returns that of what a tool has returned.

Nothing is lost: what is neither a text nor an image is refused by name, unless the template knows its kind (`unknown_kinds`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from os import PathLike
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from outlines_cont.errors import ChatError, ImageError, shortened
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.pixel_store import ReadImage
from outlines_cont.models.image_file import is_image

_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of parts of texts, and the key that has the text."""
_IMAGES = ("image", "image_url", "input_image")
_NAMES = ("image", "url", "path")
_MEDIA = {"audio": "a sound", "video": "a video", "file": "a file"}


def read_content(message: Any, model: LanguageModel) -> Any:
    """Return a message whose content is a text or a list of parts, with images as the network takes them; the same, if it is no list.

    A content may be a list of texts, images (see `model.see`) and parts. Texts become `{"type": "text", "text": ...}`. Parts with an image
    are `{"type": "image", "image": ...}` (or `url`, `path`, `base64`, or MCP's `data`, or Anthropic's `source`), and OpenAI's
    `{"type": "image_url", "image_url": {"url": "data:..."}}` and `{"type": "input_image", "image_url": "data:..."}`.

    Raises:
        ChatError: a part has no text, or is a sound, a video or a file.
        ImageError: an image cannot be read.
        UnsupportedModel: the model takes none.
    """
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": [_part(part, model, message.get("role")) for part in content]}


def result_content(result: object) -> Any:
    """Return the content of a message with what a tool has returned, see `Chat.tool`.

    Raises:
        ChatError: JSON cannot hold it.
        ImageError: a part names a file, which a tool of somebody else may not open.
    """
    if isinstance(result, str):
        return result
    fields = dict(result) if isinstance(result, BaseModel) else {}
    if {"content", "isError"} <= fields.keys():  # MCP's `CallToolResult`
        return result_content(fields["content"])
    if is_image(result):
        return [result]
    items = [_dumped(item) for item in result] if isinstance(result, list | tuple) else []
    if _are_content(items):
        _check_sources(items)
        return items
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError):
        pass  # as of a model of pydantic
    try:
        return json.dumps(to_jsonable_python(result, fallback=_listed), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ChatError(
            f"expected a text, an image or what JSON can hold as a result, got {result!r}: {error}"
        ) from error


def _dumped(item: Any) -> Any:
    return item.model_dump() if isinstance(item, BaseModel) else item


def _are_content(items: list[Any]) -> bool:
    """Return whether the items of a list are parts, or images are among them."""
    kinds = [_kind(item) if isinstance(item, Mapping) else "" for item in items]
    are_parts = bool(kinds) and all(kind in _IMAGES or kind in _TEXTS for kind in kinds)
    return are_parts or any(map(is_image, items))


def _check_sources(items: list[Any]) -> None:
    for part in items:
        if isinstance(part, Mapping) and _kind(part) in _IMAGES:
            named = (one.get(name) for one in (part, part.get("source")) if isinstance(one, Mapping) for name in _NAMES)
            for source in named:
                if isinstance(source, str | PathLike):
                    _checked_url(source)


def _listed(value: Any) -> Any:
    """Return a number or an array of NumPy or PyTorch as numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def is_text_alone(content: object) -> bool:
    """Return whether a content is a list of parts that are texts."""
    return isinstance(content, list | tuple) and all(part.get("type") == "text" for part in content)


def unknown_kinds(content: object, template: str) -> list[str]:
    """Return the kinds of parts that are neither texts nor images, and that a template does not name: it would write nothing for them."""
    parts = content if isinstance(content, list | tuple) else ()
    others = [str(part.get("type")) for part in parts if part.get("type") not in ("text", "image")]
    return [kind for kind in others if not re.search(rf"[\"']{re.escape(kind)}[\"']", template)]


def _kind(part: Mapping[str, Any]) -> Any:
    """Return the kind of a part; that of one without a type is the first of its keys that names one."""
    known = (*_TEXTS, *_IMAGES)
    return part.get("type") or next((name for name in part if name in known), None)


def _part(part: Any, model: LanguageModel, role: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, Mapping):
        if part is None or isinstance(part, int | float):
            raise ChatError(f"expected texts, images and parts in the content of a message, got {part!r} of the {role}")
        return {"type": "image", "image": model.read_image(part)}
    kind = _kind(part)
    if kind in _TEXTS:
        return _text_part(part, kind, role)
    if kind in _IMAGES:
        image = part.get("image")
        return part if isinstance(image, ReadImage) else {"type": "image", "image": model.read_image(_source(part))}
    media = next((told for name, told in _MEDIA.items() if isinstance(kind, str) and name in kind), None)
    if media is not None:
        raise ChatError(
            f"expected texts and images in a message of the {role}, got {media} ({kind!r}), which is not read"
        )
    if not isinstance(kind, str):
        raise ChatError(
            "expected a part of a message with its type, such as {'type': 'text', 'text': 'Hi'}, got "
            f"{shortened(repr(dict(part)))} of the {role}"
        )
    return part


def _text_part(part: Mapping[str, Any], kind: str, role: Any) -> dict[str, Any]:
    text = part.get(_TEXTS[kind])
    if not isinstance(text, str):
        raise ChatError(
            f"expected a text as {_TEXTS[kind]!r} of a part of a message, got {shortened(repr(dict(part)))} of the {role}"
        )
    others = {name: value for name, value in part.items() if name not in ("type", _TEXTS[kind])}
    return {"type": "text", "text": text, **others}


def _source(part: Mapping[str, Any]) -> Any:
    """Return the image of a part, in a form that models open."""
    url = part.get("image_url")
    if url is not None:
        return _checked_url(url.get("url") if isinstance(url, Mapping) else url)
    nested = part.get("source")
    if isinstance(nested, Mapping):  # Anthropic's
        part = nested
        if part.get("url") is not None:
            return _checked_url(part["url"])
    encoded = next((part[name] for name in ("data", "base64") if part.get(name) is not None), None)
    if isinstance(encoded, str):
        return f"data:image/any;base64,{encoded}"
    found = next((part[name] for name in _NAMES if part.get(name) is not None), encoded)
    if found is None:
        raise ChatError(
            "expected an image in a part of a message, such as {'type': 'image', 'image': scan}, got one with "
            f"{', '.join(map(repr, part)) or 'nothing'}"
        )
    return found


def _checked_url(source: Any) -> str:
    """Return a `data:` URL; messages with URLs come from elsewhere, and open no file."""
    if not isinstance(source, str) or source[:5].lower() != "data:":
        raise ImageError(
            f"expected a `data:` URL in an `image_url`, got {shortened(repr(source))}. Fetch it, and pass its bytes."
        )
    return source
