"""Images of rows that run: where the next one is, and how it is fed: as a whole and alone, by a forward with its pixels, as other rows have
none, or pixels of another shape. One image is fed in a step of a batch; text before and after it is fed together with that of other rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from outlines_cont.engine.row import Row
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.batch import Fed
from outlines_cont.kv.row import RowKV
from outlines_cont.state.image_span import ImageSpan, floor, offset


def next_image(row: Row) -> ImageSpan | None:
    """Return the first image of a row that is not fed, None for none; what is fed of one that is not whole is lost."""
    images = row.images
    start = floor(images, row.cached)
    if start < row.cached:
        row.lose(start)
    return next((span for span in images if span.start >= row.cached and span.stop <= row.length), None)


def image_to_feed(row: Row) -> ImageSpan | None:
    """Return the image that a row has to feed next, None where there is none, or text before it."""
    span = next_image(row) if row.source.images else None
    return span if span is not None and span.start == row.cached and row.num_pending else None


def up_to_image(row: Row, chunk: list[int]) -> list[int]:
    """Return the pending tokens of a row before the next image."""
    span = next_image(row) if row.source.images else None
    return chunk if span is None else chunk[: span.start - row.cached]


def offsets_of(rows: Sequence[object]) -> list[int] | None:
    """Return by how much the positions of the next tokens of sequences differ from their indices; None where none has an image."""
    if not any(row.source.images for row in rows if isinstance(row, Row)):
        return None
    return [offset(row.images, row.cached) if isinstance(row, Row) else 0 for row in rows]


def feed_image(model: LanguageModel, row: Row, span: ImageSpan, share: RowKV | None) -> tuple[RowKV | None, Fed]:
    """Feed an image of a row on top of its keys and values; return these with those of the image, and the logits that the row wants.

    Raises `ImageLost` where the pixels are not at hand, `KVBudgetError` where there is no room.
    """
    row.source.check_images()
    ids = row.token_ids[span.start : span.stop]
    kv, fed = model.feed_image(share, ids, span.pixels, offset(row.images, span.start), row.wanted(len(ids)))
    return kv, fed
