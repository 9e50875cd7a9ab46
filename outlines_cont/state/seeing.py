"""`see_prompt`, `see_after`: states of texts with images, at once: the images are fed as they are seen, so that states made of the result
share their keys and values. `<image>` in a text stands for an image, in all families.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from outlines_cont.checks import check, checked_bool
from outlines_cont.errors import ContextLengthError, ImageError, OptionError, TokenizerError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.pixel_store import ReadImage
from outlines_cont.sampling.random_stream import RandomStream, Rng, common_seed, open_seeds
from outlines_cont.state.image_span import PLACEHOLDER, ImageSpan
from outlines_cont.state.row import Rows, StateRow
from outlines_cont.state.text import extended
from outlines_cont.state.tokens import (
    Given,
    Tokens,
    check_length,
    check_some_run,
    checked_given,
    failed_prompt,
    prompt_ids,
    prompt_row,
)


def see_prompt(
    model: LanguageModel, prompt: Any, images: Any, *, keep_pixels: bool, rng: Rng
) -> tuple[Rows, int | tuple[int, ...]]:
    """Return the rows of prompts with images, which are fed, and their seed; see `EngineModel.see`."""
    checked_bool(keep_pixels, "keep_pixels")
    prompts, lists = paired(prompt, images)
    seeds = open_seeds(rng, len(prompts))
    rows = [
        _prompt_row(model, given, some, RandomStream(seed))
        for given, some, seed in zip(prompts, lists, seeds, strict=True)
    ]
    check_some_run([row.error for row in rows])
    seen = [_settled(row, keep_pixels) for row in model.prefilled(rows)]
    return tuple((row,) for row in seen), common_seed(seeds)


def paired(prompt: Any, images: Any) -> tuple[list[str | Tokens], list[list[Any]]]:
    """Return the texts of a batch, and the images of each; a text that is not in a list is a batch of one."""
    if isinstance(prompt, str | Tokens):
        return [prompt], [[*images] if isinstance(images, list | tuple) else [images]]
    is_batch = isinstance(prompt, list | tuple) and prompt and all(isinstance(one, str | Tokens) for one in prompt)
    if not is_batch:
        raise TypeError(
            f"expected a text, or a list of texts, with `<image>` for each image, got {type(prompt).__name__}"
        )
    if not isinstance(images, list | tuple) or len(images) != len(prompt):
        raise OptionError(
            f"expected a list with the images of each of {len(prompt)} texts as `images`, got "
            f"{f'one of {len(images)}' if isinstance(images, list | tuple) else type(images).__name__}",
            "images",
        )
    return [*prompt], [[*some] if isinstance(some, list | tuple) else [some] for some in images]


def image_row(
    model: LanguageModel, parts: Sequence[Given], images: Sequence[ReadImage], stream: RandomStream
) -> StateRow:
    """Return the row of a prompt with images between its parts, none of which is fed yet; raise what makes it unfit."""
    first, *rest = parts
    token_ids, num_start = prompt_ids(checked_given(first, model), model)
    begun = prompt_row(token_ids, model, stream, num_start)
    row = _followed(begun, rest, images, model)
    check_length(model, row.token_ids)
    whole = StateRow.of_prompt(row.token_ids, stream, row.num_start_tokens)
    whole = replace(whole, images=row.images)
    return replace(whole, prompt_length=len(whole.text(model.tokenizer)))


def image_after(row: StateRow, image: ReadImage) -> StateRow:
    """Return a row followed by an image, which is not fed yet."""
    start = len(row.token_ids)
    span = ImageSpan(start, start + len(image.token_ids), image.pixels.digest, image.shift, pixels=image.pixels)
    return replace(row.append(image.token_ids, reset=False), images=(*row.images, span))


def see_after(model: LanguageModel, rows: Rows, text: Any, images: Any, *, keep_pixels: bool) -> Rows:
    """Return rows with a text and its images behind each, which are fed; see `SequenceState.see`."""
    checked_bool(keep_pixels, "keep_pixels")
    num_rows = sum(map(len, rows))
    if isinstance(text, str | Tokens):
        found = [*images] if isinstance(images, list | tuple) else [images]
        known = [model.read_image(image) for image in found]
        pairs = [(text, known)] * num_rows
    else:
        texts, lists = paired(text, images)
        check(
            "text", text, len(texts) in (len(rows), num_rows), f"one text, or {len(rows)} texts (one per batch entry),"
        )
        read = [[model.read_image(image) for image in some] for some in lists]
        times = num_rows // len(texts)
        pairs = [pair for pair in zip(texts, read, strict=True) for _ in range(times)]
    longer = list[StateRow]()
    flat = [row for group in rows for row in group]
    for row, (given, some) in zip(flat, pairs, strict=True):
        first, *rest = _parts(given, len(some))
        whole = _followed(extended(row, checked_given(first, model), model.tokenizer), rest, some, model)
        check_length(model, whole.token_ids, "row with its images")
        longer.append(whole if row.error is None else row)
    seen = iter([_settled(row, keep_pixels) for row in model.prefilled(longer)])
    return tuple(tuple(next(seen) for _ in group) for group in rows)


def _prompt_row(model: LanguageModel, given: str | Tokens, images: list[Any], stream: RandomStream) -> StateRow:
    parts = _parts(given, len(images))
    try:
        return image_row(model, parts, [model.read_image(image) for image in images], stream)
    except (ImageError, ContextLengthError, TokenizerError) as error:
        return failed_prompt(error, stream)


def _parts(given: str | Tokens, count: int) -> list[Given]:
    """Return the texts before, between and after images; raise `OptionError` if there are more or fewer than `count`."""
    text = given if isinstance(given, str) else given.text
    parts = text.split(PLACEHOLDER)
    if len(parts) != count + 1:
        raise OptionError(
            f"expected a text with `{PLACEHOLDER}` for each image, got {len(parts) - 1} for {count} images. Write it where the image "
            f"stands, such as 'Read this receipt: {PLACEHOLDER}'.",
            "images",
        )
    return [*parts] if isinstance(given, str) else [replace(given, text=part) for part in parts]


def _followed(row: StateRow, parts: Sequence[Given], images: Sequence[ReadImage], model: LanguageModel) -> StateRow:
    """Return a row followed by images, with a text after each."""
    for image, given in zip(images, parts, strict=True):
        row = image_after(row, image)
        if given.text if isinstance(given, Tokens) else given:
            row = extended(row, checked_given(given, model), model.tokenizer)
    return row


def _settled(row: StateRow, keep_pixels: bool) -> StateRow:
    """Return a row that was fed; without its pixels, and pinned, where they are not kept."""
    if keep_pixels or not row.images or row.kv is None:
        return row
    stop = max(row.images[-1].stop, row.pinned)
    return replace(
        row, images=tuple(replace(span, pixels=None) for span in row.images), pinned=stop, kv=row.kv.pinned(stop)
    )
