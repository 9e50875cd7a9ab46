"""What a generator is given, as rows: texts become prompts, states go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from outlines_cont.errors import (
    ContextLengthError,
    EmptyPrompt,
    ModelMismatch,
    PromptTypeError,
    SampleMismatch,
    TokenizerError,
    located,
)
from outlines_cont.interfaces import LanguageModel
from outlines_cont.prefill import prefilled
from outlines_cont.random_stream import RandomStream, Rng, open_seeds
from outlines_cont.state import SequenceState
from outlines_cont.state_row import StateRow

Prompt = str | SequenceState | Sequence[str] | Sequence[SequenceState]


@dataclass(frozen=True, slots=True)
class Opened:
    """Rows to continue.

    Attributes:
        rows: B lists of S rows; one that cannot run has its `error`.
        seed: of the random streams, as in `SequenceState`.
        reused: how many tokens the given states hold keys and values of.
    """

    rows: list[list[StateRow]]
    seed: int | tuple[int, ...]
    reused: int = 0


def open_prompt(model: LanguageModel, prompt: Any, num_samples: int | None, rng: Rng) -> Opened:
    """Return the rows of `prompt`.

    Args:
        model: the model that will continue them.
        prompt: a text, a list of texts, a state or a list of states.
        num_samples: S, None to follow the state; 1 for texts.
        rng: see `open_seeds`; None continues the streams of a state.

    Raises:
        PromptTypeError: `prompt` is something else, or an empty list.
        EmptyPrompt, ContextLengthError, TokenizerError: no row at all can run. Where some can, the others keep their error.
        SampleMismatch, ModelMismatch: a state does not fit.
    """
    items: Any = [prompt] if isinstance(prompt, str | SequenceState) else prompt
    if isinstance(items, Sequence) and not isinstance(items, bytes | bytearray) and items:
        if all(isinstance(item, str) for item in items):
            return _open_texts(model, list(items), num_samples or 1, rng)
        if all(isinstance(item, SequenceState) for item in items):
            return _open_states(model, list(items), num_samples, rng)
    raise PromptTypeError(
        "expected a prompt that is a text, a SequenceState, or a list with one or more of either, "
        f"got {_describe(prompt)}. Chat messages become a text by the tokenizer's `apply_chat_template`."
    )


def _open_texts(model: LanguageModel, texts: list[str], num_samples: int, rng: Rng) -> Opened:
    seeds, own = open_seeds(rng, len(texts))
    prompts = [
        _prompt_row(model, text, RandomStream(seed, 0 if own else batch))
        for batch, (text, seed) in enumerate(zip(texts, seeds, strict=True))
    ]
    errors = [row.error for row in prompts]
    if errors[0] is not None and all(errors):
        raise located(errors[0], 0) if len(texts) > 1 else errors[0]
    if num_samples > 1:
        # Fed once, so that all samples begin with the same keys, values and logits.
        prompts = prefilled(model, prompts)
    rows = [[_sample_of(row, sample) for sample in range(num_samples)] for row in prompts]
    return Opened(rows, tuple(seeds) if own else seeds[0])


def _prompt_row(model: LanguageModel, text: str, stream: RandomStream) -> StateRow:
    try:
        token_ids = model.tokenizer.encode(text, add_special_tokens=True)
        _check_length(model, token_ids)
    except (TokenizerError, EmptyPrompt, ContextLengthError) as error:
        return replace(StateRow.of_prompt([], stream), error=error, finish_reason="error")
    return StateRow.of_prompt(token_ids, stream)


def _check_length(model: LanguageModel, token_ids: list[int]) -> None:
    if not token_ids:
        raise EmptyPrompt(
            "expected a prompt of one token or more, got an empty text, and the tokenizer puts no token at the beginning. "
            "Give the model some text to continue, such as a line break."
        )
    limit = model.context_length
    if limit is not None and len(token_ids) >= limit:
        raise ContextLengthError(
            f"expected a prompt of fewer than {limit} tokens, the context of the model, got {len(token_ids)}. "
            "Shorten the prompt, or use a model with a longer context.",
            len(token_ids),
            limit,
        )


def _sample_of(row: StateRow, sample: int) -> StateRow:
    return replace(row, stream=replace(row.stream, sample=sample))


def _open_states(model: LanguageModel, states: list[SequenceState], num_samples: int | None, rng: Rng) -> Opened:
    samples = states[0].num_samples
    for state in states:
        if state.model is not model:
            raise ModelMismatch(
                f"expected a state of the generator's model {model!r}, got one of {state.model!r}. "
                "Give its text to this model instead: `generator(str(state))`."
            )
        if state.num_samples != (num_samples or samples):
            raise SampleMismatch(
                f"expected a state with {num_samples or samples} samples, got one with {state.num_samples}. "
                f"Use a sampler with n={state.num_samples}, or `greedy()`, which takes any number; `state.fork(n)` widens a state."
            )
    rows = [[_continued(row) for row in group] for state in states for group in state.rows]
    reused = sum(row.cached for group in rows for row in group if row.error is None)
    if rng is None:
        seeds = [seed for state in states for seed in _seeds_of(state)]
        return Opened(rows, seeds[0] if len(set(seeds)) == 1 else tuple(seeds), reused)
    seeds, own = open_seeds(rng, len(rows))
    fresh = [
        [replace(row, stream=RandomStream(seed, 0 if own else batch, sample)) for sample, row in enumerate(group)]
        for batch, (group, seed) in enumerate(zip(rows, seeds, strict=True))
    ]
    return Opened(fresh, tuple(seeds) if own else seeds[0], reused)


def _continued(row: StateRow) -> StateRow:
    """Return a row of a state, with an error where it has no token to go on from."""
    if row.token_ids or row.error is not None:
        return row
    error = EmptyPrompt(
        "expected a row of one token or more, got one with no token: a slice has left nothing of it. Add some text to it."
    )
    return replace(row, error=error, finish_reason="error")


def _seeds_of(state: SequenceState) -> list[int]:
    return list(state.seed) if isinstance(state.seed, tuple) else [state.seed] * state.batch_size


def _describe(prompt: object) -> str:
    if isinstance(prompt, list | tuple):
        kinds = sorted({type(item).__name__ for item in prompt})
        return f"a list of {', '.join(kinds)}" if kinds else "an empty list"
    return f"{type(prompt).__name__}"
