"""Images in messages that were read (`content_parts`): a row of the ids that a template has written, in which its place for an image is
replaced by the tokens of the image; and those messages in files.

A place is one that the template itself has written: what a user types is never read as one, as special tokens in it are letters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from outlines_cont.chats.message import Message
from outlines_cont.errors import ChatError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.pixel_store import Pixels, ReadImage
from outlines_cont.state.image_span import Images, ImageSpan
from outlines_cont.state.row import StateRow
from outlines_cont.state.text import kept_tokens


def images_of(messages: Sequence[Message]) -> list[ReadImage]:
    """Return the images in messages, in order."""
    contents = (message.get("content") for message in messages)
    parts = [part for content in contents if isinstance(content, list | tuple) for part in content]
    found = (part.get("image") for part in parts if isinstance(part, Mapping))
    return [image for image in found if isinstance(image, ReadImage)]


def expanded(token_ids: Sequence[int], images: Sequence[ReadImage], model: LanguageModel) -> tuple[list[int], Images]:
    """Return the ids that a template has written with those of the images in their places, and where they are.

    Raises:
        ChatError: the template has not written a place for each image.
    """
    if not images:
        return [*token_ids], ()
    place = model.tokenizer.encode_special(model.image_placeholder)
    found = [*token_ids]
    starts = [at for at in range(len(found) - len(place) + 1) if found[at : at + len(place)] == place]
    if len(starts) != len(images):
        raise ChatError(
            f"expected a chat template that writes a place for each image ({model.image_placeholder!r}), got {len(starts)} places for "
            f"{len(images)} images. It may be one of texts alone: pass the template of the model, `Chat(model, template=...)`."
        )
    spans, out, last = list[ImageSpan](), list[int](), 0
    for start, image in zip(starts, images, strict=True):
        out += found[last:start]
        spans.append(_span(len(out), image))
        out += image.token_ids
        last = start + len(place)
    return out + found[last:], tuple(spans)


def with_same_images(row: StateRow, images: Images) -> StateRow:
    """Return the first tokens of a row, before the first image that is not the same in `images`."""
    pairs = zip(row.images, images, strict=False)
    same = next(
        (i for i, (own, other) in enumerate(pairs) if own.digest != other.digest), min(len(row.images), len(images))
    )
    return kept_tokens(row, row.images[same].start) if same < len(row.images) else row


def located(row: StateRow, images: Images, token_ids: Sequence[int]) -> StateRow | None:
    """Return a row that writes `token_ids`, in its own way, with the images of these; None if one is not found in it."""
    known = list(row.images)
    at = known[-1].stop if known else 0
    for span in images[len(known) :]:
        ids = tuple(token_ids[span.start : span.stop])
        start = next(
            (i for i in range(at, len(row.token_ids) - len(ids) + 1) if row.token_ids[i : i + len(ids)] == ids), None
        )
        if start is None:
            return None
        at = start + len(ids)
        known.append(replace(span, start=start, stop=at))
    return replace(row, images=tuple(known))


def _span(start: int, image: ReadImage) -> ImageSpan:
    stop = start + len(image.token_ids)
    return ImageSpan(start, stop, image.pixels.digest, image.shift, pixels=image.pixels)


def as_saved(message: Message) -> Message:
    """Return a message that JSON can hold: images by their digests."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    return {
        **message,
        "content": [
            {**part, "image": {"digest": part["image"].pixels.digest}} if _has_image(part) else part for part in content
        ],
    }


def as_loaded(message: Message, images: Mapping[str, ReadImage]) -> Message:
    """Return a message that was saved, with its images; raise `ChatError` if one is missing."""
    content = message.get("content")
    if not isinstance(content, list | tuple):
        return message
    return {**message, "content": [_loaded(part, images) for part in content]}


def images_in(row: StateRow) -> dict[str, ReadImage]:
    """Return the images of a row by their digests."""
    found = {}
    for span in row.images:
        pixels = span.pixels if isinstance(span.pixels, Pixels) else Pixels(span.digest, None)
        found[span.digest] = ReadImage(row.token_ids[span.start : span.stop], pixels, span.shift)
    return found


def _has_image(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("image"), ReadImage)


def _loaded(part: Any, images: Mapping[str, ReadImage]) -> Any:
    saved = part.get("image") if isinstance(part, Mapping) else None
    if not isinstance(saved, Mapping):
        return part
    if saved.get("digest") not in images:
        raise ChatError("expected an image of a message in the state of the conversation, got none with its digest")
    return {**part, "image": images[saved["digest"]]}
