"""`load_extractor`: the model and the `Extractor` of `outlines-cont extract`. The only module of that command that imports torch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers.utils.logging import disable_progress_bar

from outlines_cont.chat import Chat
from outlines_cont.cli.chat import begun_chat
from outlines_cont.cli.options import Draft, DType, ExtractOptions
from outlines_cont.cli.sampler import make_sampler
from outlines_cont.cli.threads import set_threads
from outlines_cont.errors import ModelNotFound, NoChatTemplate
from outlines_cont.models.hugging_face import HuggingFaceModel, tiny, transformers
from outlines_cont.pipelines.extractor import Extractor
from outlines_cont.pipelines.prompts.template import PromptTemplate
from outlines_cont.pipelines.rows.errors import SetupError
from outlines_cont.pipelines.rows.schema import RecordSchema


def load_extractor(
    options: ExtractOptions, schema: RecordSchema, template: PromptTemplate, say: Callable[[str], None] | None = None
) -> Extractor:
    """Load the model, choose its threads, and compile the schema for its vocabulary.

    Args:
        options: those of the command.
        schema: what a record is.
        template: makes the prompts.
        say: called with a line on the chosen number of threads; None for no line.

    Raises:
        SetupError: the model cannot be loaded.
        fsm.FSMError, OutlinesContError: the schema has no value that the model can write.
    """
    sampler = make_sampler(options.sampler)
    model = load_or_refuse(options.model, options.device, options.dtype)
    choice = set_threads(model, options.batch_size)
    if say is not None:
        say(str(choice))
    return Extractor(
        model,
        schema,
        template,
        text_field=options.text_field,
        max_tokens=options.max_tokens,
        sampler=sampler,
        seed=options.seed,
        batch_size=options.batch_size,
        chat=_chat(model, options) if options.chat else None,
        draft=None if options.draft is Draft.NONE else options.draft.value,
        samples=options.samples,
        is_scored=options.has_details,
        **options.schema_options,
    )


def _chat(model: HuggingFaceModel, options: ExtractOptions) -> Chat:
    """Return the conversation that all rows begin with.

    Raises:
        SetupError: the model has no chat template.
    """
    try:
        return begun_chat(model, None, options.system, options.seed)
    except NoChatTemplate as error:
        raise SetupError(
            f"expected a model with a chat template with --chat, got {options.model!r}, whose tokenizer has none. Leave out --chat, and "
            "say in the template of --prompt what the model is to do."
        ) from error


def load_or_refuse(name: str | None, device: str | None, dtype: DType | None) -> HuggingFaceModel:
    """Return what `load_model` does, with one kind of error for all failures.

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
        return transformers(name, device=device, dtype=None if dtype is None else dtype.value)
    return tiny(device=device, dtype=torch.float32 if dtype is None else getattr(torch, dtype.value))
