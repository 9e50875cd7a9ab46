"""`Extractor`: prompts to records with a model. The only part of `outlines-cont extract` that imports torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from transformers.utils.logging import disable_progress_bar

from fsm import FSMError
from outlines_cont import continuous, generate, models
from outlines_cont.chat import Chat, with_ends
from outlines_cont.commands.chat import begun_chat
from outlines_cont.commands.errors import SetupError
from outlines_cont.commands.growing import ShowRecord
from outlines_cont.commands.options import Draft, DType, ExtractOptions
from outlines_cont.commands.sampler import make_sampler
from outlines_cont.commands.schema import RecordSchema
from outlines_cont.commands.threads import set_threads
from outlines_cont.continuation import Continuation
from outlines_cont.errors import IncompleteOutput, ModelNotFound, NoChatTemplate, OutlinesContError
from outlines_cont.models import HuggingFaceModel
from outlines_cont.models.special_names import MARKS, control_names_of, mapped_texts
from outlines_cont.options import PieceOptions
from outlines_cont.prompt import Item
from outlines_cont.state import SequenceState
from outlines_cont.tokens import Tokens, start_ids


@dataclass(frozen=True, slots=True)
class Extractor:
    """A model with a schema, ready for prompts.

    Attributes:
        generator: writes a record after a prompt.
        max_tokens: the most tokens of a record.
        seed: of the random numbers; None where none are drawn.
        chat: the conversation to which a prompt is the message of the user; None where prompts are plain text.
    """

    generator: Continuation
    max_tokens: int
    seed: int | None = None
    chat: Chat | None = None

    def marked(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a row with a mark inside what is written like a special token, so that it stays letters in a prompt.

        All that is written in a message is letters, so there nothing is marked.
        """
        if self.chat is not None:
            return values
        names = control_names_of(self.generator.generator.model.tokenizer)
        return cast(dict[str, Any], mapped_texts(values, lambda text: names.marked(text, MARKS[0])))

    def __call__(self, prompts: list[str], show: ShowRecord | None = None) -> list[Any]:
        """Return the value of every prompt, or the `Exception` that its row has failed with; show them while they are written."""
        try:
            state = self._state(prompts, show)
        except (OutlinesContError, FSMError, torch.OutOfMemoryError) as error:
            # No row of the batch can run, or the batch is too large for the device: smaller batches tell which row is why.
            if len(prompts) == 1:
                return [error]
            half = len(prompts) // 2
            return self(prompts[:half], show) + self(prompts[half:], None if show is None else _behind(show, half))
        return [self._result(state, at) for at in range(len(prompts))]

    def _state(self, prompts: list[str], show: ShowRecord | None) -> SequenceState:
        seeds = None if self.seed is None else [_row_seed(self.seed, prompt) for prompt in prompts]
        given = [self._given(prompt) for prompt in prompts]
        options: PieceOptions = {"max_tokens": self.max_tokens}
        if self.chat is not None:
            options = with_ends(options, [self.chat])
        if show is None:
            return self.generator(given, rng=seeds, **options)
        stream = self.generator.stream(given, partial=True, rng=seeds, **options)
        for event in stream:
            show(event.batch, event.value, event.finish_reason not in ("", "length", "error"))
        return stream.state

    def _given(self, prompt: str) -> Item:
        """Return a prompt in which the special tokens of the template are such, and those of its row letters."""
        if self.chat is not None:
            return self.chat.user(prompt).state
        model = self.generator.generator.model
        if MARKS[0] not in prompt:
            return Tokens.of(prompt, special=True)
        token_ids = control_names_of(model.tokenizer).encode_marked(prompt, MARKS[0], model.tokenizer)
        start = start_ids(model)
        return token_ids if token_ids[: len(start)] == start else [*start, *token_ids]

    def _result(self, state: SequenceState, at: int) -> Any:
        error = state.errors[at][0]
        if error is not None:
            return error
        if state.finish_reasons[at][0] == "length":
            return IncompleteOutput(
                f"expected a whole record, but max_tokens={self.max_tokens} or the context of the model cut it. "
                "Raise --max-tokens, or bound the strings and arrays of the schema.",
                "",
                "length",
            )
        return state.values[at][0]


def _behind(show: ShowRecord, count: int) -> ShowRecord:
    """Return `show` for records that stand behind `count` others."""
    return lambda number, value, is_whole: show(number + count, value, is_whole)


def load_extractor(
    options: ExtractOptions, schema: RecordSchema, say: Callable[[str], None] | None = None
) -> Extractor:
    """Load the model, choose its threads, and compile the schema for its vocabulary.

    Args:
        options: those of the command.
        schema: what a record is.
        say: takes what was chosen, for people.

    Raises:
        SetupError: the model cannot be loaded.
        fsm.FSMError, OutlinesContError: the model cannot write what the schema asks for.
    """
    sampler = make_sampler(options.sampler)
    model = load_or_refuse(options.model, options.device, options.dtype)
    choice = set_threads(model, options.batch_size)
    if say is not None:
        say(str(choice))
    draft = None if options.draft is Draft.NONE else options.draft.value
    generator = generate.json(model, schema.schema, sampler=sampler, draft=draft, **options.schema_options)
    seed = options.seed if sampler.needs_random else None
    return Extractor(continuous(generator), options.max_tokens, seed, _chat(model, options) if options.chat else None)


def _chat(model: HuggingFaceModel, options: ExtractOptions) -> Chat:
    """Return the conversation that all rows begin with.

    Raises:
        SetupError: the model has no chat template.
    """
    try:
        return begun_chat(model, None, options.system, options.model is None, options.seed)
    except NoChatTemplate as error:
        raise SetupError(
            f"expected a model with a chat template beside --chat, got {options.model!r}, whose tokenizer has none. Leave out --chat, and "
            "say in the template of --prompt what the model is to do."
        ) from error


def _row_seed(seed: int, prompt: str) -> int:
    """Return the seed of a row: whatever rows run beside it, and in whatever order, its record is the same."""
    return int.from_bytes(hashlib.sha256(f"{seed} {prompt}".encode("utf-8", "surrogatepass")).digest()[:7])


def load_or_refuse(name: str | None, device: str | None, dtype: DType | None) -> HuggingFaceModel:
    """The same as `load_model`, with one error for everything that can go wrong.

    Raises:
        SetupError: the model cannot be loaded.
    """
    try:
        return load_model(name, device, dtype)
    except ModelNotFound as error:  # says by itself what was tried, and what to do
        raise SetupError(f"the model {name!r} cannot be loaded: {error}") from error
    except Exception as error:
        # Hub, files, weights, devices: each has errors of its own, and none of them is ours.
        which = "the bundled model" if name is None else f"the model {name!r}"
        raise SetupError(
            f"{which} cannot be loaded: {type(error).__name__}: {error} -- "
            "Give a hub id, or a folder with config, weights and tokenizer, and a --device and --dtype that this machine has."
        ) from error


def load_model(name: str | None, device: str | None, dtype: DType | None) -> HuggingFaceModel:
    """Return a model by hub id or path, or the bundled one for None."""
    # The bar of loading a few files would stand in the middle of ours; downloads keep theirs.
    disable_progress_bar()  # type: ignore[no-untyped-call]
    if name is not None:
        return models.transformers(name, device=device, dtype=None if dtype is None else dtype.value)
    return models.tiny(device=device, dtype=torch.float32 if dtype is None else getattr(torch, dtype.value))
