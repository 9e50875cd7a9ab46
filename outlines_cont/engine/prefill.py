"""`EngineModel`: the base class of models: its engine, meters, a memo, KV layout, and prefill: pending tokens of rows are fed without
sampling, for their keys and values and the logits after them; `read_logits` feeds earlier ones again, for their logits alone, `score` for
the log-probabilities of a given text.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import torch

from outlines_cont.engine.engine import Engine, engine_of
from outlines_cont.engine.job import Job, Step
from outlines_cont.engine.prefill_row import PathRow, PrefillRow, run_rows, token_logprobs
from outlines_cont.engine.scoring import TokenScore, score_rows, score_texts
from outlines_cont.errors import UnsupportedModel
from outlines_cont.immutable import Immutable
from outlines_cont.interfaces import LanguageModel
from outlines_cont.kv.buffer import Layer
from outlines_cont.kv.serial import kv_layout
from outlines_cont.meter import Meter, MeterBoard
from outlines_cont.sampling.random_stream import Rng
from outlines_cont.state.row import StateRow, is_lacking
from outlines_cont.state.seeing import see_prompt
from outlines_cont.state.sequence_state import SequenceState


class EngineModel(Immutable):
    """Base class of models: what does not depend on how their logits are computed."""

    _no_prompt: ClassVar[str] = "A generator has its model already; the prompt is the text that it continues."
    _advice: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("generate", "complete", "chat", "invoke", "stream"),
            "Make a generator, and call it with a prompt: `generate.text(model)(prompt)`; for a conversation see `Chat(model)`.",
        ),
        **dict.fromkeys(("encode", "decode", "tokenize"), "That is a method of `model.tokenizer`."),
    }

    def __init__(self) -> None:
        self._meters = MeterBoard()
        # A cache of values derived from the model, such as its vocabulary and its token FSMs.
        self.memo: dict[object, Any] = {}

    def meter(self) -> AbstractContextManager[Meter]:
        """Count the work of the model inside a `with` block; see `Meter`."""
        return self._meters.open()

    def count(self, counts: Meter) -> None:
        """Add the work of a step to every open meter."""
        self._meters.add(counts)

    @property
    def kv_layout(self: LanguageModel) -> list[Layer | None]:
        """The layout of the keys and values of one token, layer by layer; see `kv.serial.kv_layout`."""
        return kv_layout(self)

    @property
    def engine(self: LanguageModel) -> Engine:
        """The engine that all calls of the model share."""
        return self.memo.get("engine") or engine_of(self)

    def prefilled(self: LanguageModel, rows: Sequence[StateRow], meter: Meter | None = None) -> list[StateRow]:
        """Return the rows with all tokens cached and the logits after them known; rows that failed or are empty are returned unchanged.

        Args:
            rows: they are not changed.
            meter: its `fed_tokens` is increased by those of these rows alone, if given.

        Raises:
            NotRecomputable: the logits after a row are not known, and its last token cannot be fed again.
            KVBudgetError: one row alone needs more than the budget. If several do together they run one after the other, and
                only the logits of the first are left.
            Exception: the error of a row in its forward.

        Cost: one forward, or one per row for a model that cannot stack rows; more for long rows, see `Engine`; none if everything
        is known.
        """
        return [row for row, _ in self.prefilled_before(rows, [0] * len(rows), meter)]

    def prefilled_before(
        self: LanguageModel, rows: Sequence[StateRow], nums_before: Sequence[int], meter: Meter | None = None
    ) -> list[tuple[StateRow, dict[int, torch.Tensor]]]:
        """Return the same, each with (V,) logits before each of its last `nums_before` tokens, and after them, by index of the next token.

        A row that was known completely has no such logits. Errors and cost are those of `prefilled`.
        """
        counts, lengths = Meter(), [len(row.token_ids) for row in rows]
        lacking = {
            i: PrefillRow(row, self, counts=counts, indices=range(_first(row, nums_before[i]), lengths[i]))
            for i, row in enumerate(rows)
            if is_lacking(row)
        }
        filled: list[tuple[StateRow, dict[int, torch.Tensor]]] = [(row, {}) for row in rows]
        for (i, fed), row in zip(lacking.items(), run_rows(self, [*lacking.values()], counts), strict=True):
            filled[i] = row, {index + 1: after for index, after in fed.found.items()}
        if meter is not None:
            meter.fed_tokens += sum(fed.num_fed for fed in lacking.values())
        return filled

    def read_paths(
        self: LanguageModel, paths: Sequence[tuple[StateRow, Mapping[int, Sequence[int]]]], *, is_urgent: bool = False
    ) -> Generator[Step, None, list[tuple[StateRow, dict[int, list[float]]]]]:
        """Return a task of the engine that feeds rows for the log-probabilities of some next tokens along them.

        Args:
            paths: rows, each with the ids that are wanted after the tokens at some indices; at least one index.
            is_urgent: whether running rows wait for it; see `Job`.

        Returns:
            The rows with their keys and values, or with their error, and what was wanted, by index, in the order of the ids.

        Cost: one forward of all rows; more for long ones, see `Engine`. Rows of which only the known logits are wanted feed nothing.
        """
        counts, found = Meter(), list[tuple[StateRow, dict[int, list[float]]]]()
        rows: dict[int, PathRow] = {}
        for number, (row, wanted) in enumerate(paths):
            last = len(row.token_ids) - 1
            known = None
            if row.logits is not None and row.cached > last and last in wanted:
                known = token_logprobs(row.logits, wanted[last])
            found.append((replace(row, logits=None), {} if known is None else {last: known}))
            if known is None or len(wanted) > 1:
                rows[number] = PathRow(replace(row, unscored=(), piece=None), self, wanted, counts=counts)
        if rows:
            job = Job([*rows.values()], counts)
            job.is_urgent = is_urgent
            self.engine.submit(job)
            yield from self.engine.steps(job)
            for index, (number, path) in enumerate(rows.items()):
                found[number] = job.done[index], {**found[number][1], **path.scores}
        return found

    def read_logits(self: LanguageModel, row: StateRow, indices: Sequence[int]) -> torch.Tensor:
        """Return (len(indices), V), the logits after the tokens at `indices` of a row, ascending, 0 or larger, at least one.

        Errors are those of `prefilled`. Cost: the tokens from the first index to the last are fed once more; their keys and values
        are not kept.
        """
        counts = Meter()
        fed = PrefillRow(replace(row, unscored=()), self, counts=counts, indices=indices)
        run_rows(self, [fed], counts)
        return torch.stack([fed.found[index] for index in indices])

    def see(
        self: LanguageModel, prompt: Any, images: Any, *, keep_pixels: bool = True, rng: Rng = None
    ) -> SequenceState:
        """Return a state of a prompt with images, which are processed now, once: any number of questions may follow.

            state = model.see("Read this receipt: <image>\\n", images=["scan.jpg"])
            total = continuous(generate.regex(model, "[0-9]+\\\\.[0-9]{2}"))(state + "Total: ")

        Args:
            prompt: a text, or `Tokens`, in which `<image>` stands for each image, in all families; or a list of texts, for a batch.
            images: the images of the text in order: of PIL, paths, bytes of a file, arrays (H, W, 3) of bytes, or `data:` URLs; one that is
                not in a list is a list of one. For a list of texts a list with those of each.
            keep_pixels: keep what the network takes of the images, within `model.pixels.max_bytes`, as long as a state has them: where
                keys and values are gone they are seen again. Otherwise the keys and values are `pinned`: never evicted.
            rng: the seed of the random streams, as for a prompt.

        Raises:
            OptionError: a text does not have as many `<image>` as there are images.
            ImageError: an image cannot be read. Of several texts that one fails alone, unless all do.
            UnsupportedModel: the model takes no images, or not exactly; `model.capabilities.images` says why.
            ContextLengthError, TokenizerError: a prompt cannot be fed.

        Cost: a forward for each image, and those of the text.
        """
        rows, seed = see_prompt(self, prompt, images, keep_pixels=keep_pixels, rng=rng)
        return SequenceState(self, rows, seed)

    @property
    def image_placeholder(self) -> str:
        """Raise `UnsupportedModel`; see `read_image`."""
        return str(self.read_image(None))

    def read_image(self, image: Any) -> Any:
        """Raise `UnsupportedModel`: a function of token ids takes no images."""
        raise UnsupportedModel(
            f"expected a model that takes images, got {self!r}. Open one of images and texts: `models.transformers(...)`."
        )

    def pixels_of(self, token_ids: Sequence[int], inputs: Mapping[str, torch.Tensor]) -> Any:
        """Raise the same."""
        return self.read_image(inputs)

    def feed_image(
        self, share: Any, token_ids: Sequence[int], pixels: Any, offset: int, wanted: Sequence[int]
    ) -> tuple[Any, Any]:
        """Raise the same."""
        found: tuple[Any, Any] = self.read_image(pixels)
        return found

    def score(self: LanguageModel, prompt: Any, text: Any) -> Any:
        """Return the log-probabilities that the model gives to the tokens of a text after a prompt.

            model.score("The capital of France is", [" Paris", " London"])

        Args:
            prompt: a text, `Tokens`, token ids, a state, or a list of texts and ids. Of a state its keys and values are used.
            text: what follows: a text, `Tokens` or token ids, encoded as a continuation of the prompt; or a list of them. One prompt is
                followed by each text of a list, one text follows each prompt, and two lists are pairs.

        Returns:
            (N,) float32 on the CPU: the natural logarithms of the probabilities of the N tokens of the text, without mask, at temperature
            1, each given all tokens before it; their sum is that of the text. For lists, and for a state of several rows, a list of them.
            The first token of a row, before which nothing is, has NaN.

        Raises:
            PromptTypeError: `prompt` or `text` is something else, or a list is empty.
            BatchMismatch: two lists of different lengths.
            ContextLengthError, TokenizerError: a prompt or a text cannot be fed.
            ModelMismatch: the state is of another model.
            InvalidLogits: the logits of the model are NaN.

        Cost: the tokens of the text but the last are fed, and those of the prompt that no state, other row or prefix cache has; a prompt
        that several texts share is fed once. At most 2 ** 26 logits are held at a time.
        """
        return score_texts(self, prompt, text)

    def score_rows(
        self: LanguageModel, rows: Sequence[StateRow], firsts: Sequence[int], top: int = 0
    ) -> list[list[TokenScore]]:
        """Return the scores of the tokens of rows, of each from token `firsts` on, 1 or larger; see `engine.scoring.score_rows`."""
        return score_rows(self, rows, firsts, top)


def _first(row: StateRow, num_before: int) -> int:
    """Return the index of the first token after which logits are wanted: those before the last `num_before`, and to score."""
    return min([len(row.token_ids) - 1 - num_before, *(index - 1 for index in row.unscored[:1])])
