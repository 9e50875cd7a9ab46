"""`open_prompt`: turns texts, token ids, chat messages and states into rows `[batch][sample]` that the engine continues, with their random
streams and, for token healing, the tokens to remove. A prompt of several samples is prefilled once, unless healing would crop a recurrent
cache. One that cannot run is a row with an error; if all are texts and none can run, the first error is raised.

`open_guidance`: the negative prompts of classifier-free guidance as rows, one for each guided batch entry (equal prompts share one). One
that is used more than once, or that the prefix cache can keep, is prefilled before the rows run if that saves at least 64 tokens. A
negative prompt that cannot be fed is the error of its rows, or of the call if no batch entry can run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from outlines_cont.chats.content_parts import read_content
from outlines_cont.chats.image_parts import expanded, images_of
from outlines_cont.chats.message import is_conversation
from outlines_cont.chats.template import ChatTemplate
from outlines_cont.checks import listed
from outlines_cont.engine.guidance import Guidance
from outlines_cont.errors import (
    ContextLengthError,
    EmptyPrompt,
    ModelMismatch,
    OptionError,
    PromptTypeError,
    SampleMismatch,
    TokenizerError,
)
from outlines_cont.generation.options import check_ids
from outlines_cont.generation.thinking import closing_ids
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.healing import NO_HEALING, Healing, healing_of
from outlines_cont.sampling.random_stream import RandomStream, Rng, common_seed, open_seeds
from outlines_cont.state.row import StateRow
from outlines_cont.state.sequence_state import SequenceState
from outlines_cont.state.tokens import (
    Given,
    Tokens,
    as_given,
    check_length,
    check_some_run,
    checked_given,
    failed_prompt,
    prompt_ids,
    prompt_row,
)

# A negative prompt is prefilled before the rows run if that saves at least this number of tokens.
_MIN_SAVED_TOKENS = 64


def open_guidance(
    model: LanguageModel, guidance: Guidance | Sequence[Guidance | None] | None, shape: tuple[int, int]
) -> list[tuple[StateRow, float] | None]:
    """Return the negative prompt, a row, and the scale of each of B batch entries; None for entries without guidance.

    `guidance` is that of all entries, or one for each; `shape` is B and S.

    Raises:
        OptionError: there are not as many as entries, or an id is not a token of the model.
        EmptyPrompt, ContextLengthError, TokenizerError: no negative prompt can be fed. If some can, the others are failed rows.
    """
    num_entries, num_samples = shape
    given = [guidance] * num_entries if guidance is None or isinstance(guidance, Guidance) else list(guidance)
    if len(given) != num_entries:
        raise OptionError(
            f"expected one `Guidance` or None for each of {num_entries} batch entries as `guidance`, got a list of {len(given)}. "
            "A single `Guidance`, not in a list, applies to all entries.",
            "guidance",
        )
    used = [one if one is None or not one.is_neutral else None for one in given]
    rows = {one.negative_prompt: _row(model, one.negative_prompt) for one in used if one is not None}
    check_some_run([None if one is None else rows[one.negative_prompt].error for one in used])
    counts = Counter(one.negative_prompt for one in used if one is not None)
    cache = model.prefix_cache
    shared = [
        prompt
        for prompt, row in rows.items()
        if row.error is None
        and (counts[prompt] * num_samples - (not cache.is_on)) * len(row.token_ids) >= _MIN_SAVED_TOKENS
    ]
    with suppress(Exception):  # an error here is raised in the rows again, as their error
        rows.update(zip(shared, model.prefilled([rows[prompt] for prompt in shared]), strict=True))
    return [None if one is None else (rows[one.negative_prompt], one.scale) for one in used]


def _row(model: LanguageModel, prompt: str | Tokens | Sequence[int]) -> StateRow:
    """Return a negative prompt as a row; a failed row if it cannot be fed."""
    stream = RandomStream(0, 0)  # never drawn from
    try:
        if isinstance(prompt, str | Tokens):
            prompt, _ = prompt_ids(checked_given(prompt, model), model)
        if not prompt:
            raise EmptyPrompt(
                "expected a negative prompt of one token or more, got an empty text, and the tokenizer adds no token at the beginning. "
                "Pass some text, such as a line break."
            )
        check_ids(prompt, model.vocab_size, "token ids", "as `negative_prompt`", "guidance")
        check_length(model, prompt, "negative prompt")
    except (TokenizerError, EmptyPrompt, ContextLengthError) as error:
        return failed_prompt(error, stream)
    return StateRow.of_prompt(prompt, stream)


Item = str | Tokens | Sequence[int] | Sequence[Mapping[str, Any]] | SequenceState
Prompt = Item | Sequence[Item]


@dataclass(frozen=True, slots=True)
class Opened:
    """The rows of a prompt.

    Attributes:
        rows: B lists of S rows; one that cannot run has its `error`.
        seed: the seed of the random streams, as in `SequenceState`.
        reused: the number of tokens whose keys and values are in the given states.
        healing: the tokens that token healing removes at the end of each row.
    """

    rows: list[list[StateRow]]
    seed: int | tuple[int, ...]
    reused: int = 0
    healing: list[list[Healing]] = field(default_factory=list)


def open_prompt(
    model: LanguageModel, prompt: Any, num_samples: int | None, rng: Rng, *, heal: bool = False, thinks: bool = False
) -> Opened:
    """Return the rows of `prompt`.

    Args:
        model: the model that will continue them.
        prompt: a text, `Tokens`, token ids, the messages of a conversation, a state, or a list of them; each of them is one
            batch entry, except for a state.
        num_samples: S, to which a state of one sample is forked; 1 or None for the number of the states, or 1 if there are only texts.
        rng: see `open_seeds`; None continues the streams of states.
        heal: determine the tokens to remove at the end of each row.
        thinks: whether thoughts come next; else those are closed that a chat template opens after the messages of a conversation.

    Raises:
        PromptTypeError: `prompt` is something else, or an empty list.
        NoChatTemplate, ChatError: messages are given, and the tokenizer has no template, or it rejects them.
        EmptyPrompt, ContextLengthError, TokenizerError: there are only texts, and none of them can run. If some can, the
            others keep their error.
        SampleMismatch, ModelMismatch: a state has another number of samples or another model.
    """
    items = _items(model, prompt, thinks)
    if num_samples is not None and num_samples > 1:
        items = [_widened(item, num_samples) if isinstance(item, SequenceState) else item for item in items]
    samples = _common_samples(model, items, num_samples)
    entries = [entry for item in items for entry in (item.rows if isinstance(item, SequenceState) else [_Text(item)])]
    drawn = open_seeds(rng, len(entries))
    fresh = [RandomStream(seed) for seed in drawn]
    texts = {
        b: _prompt_row(model, entry.given, fresh[b]) for b, entry in enumerate(entries) if isinstance(entry, _Text)
    }
    if texts and len(texts) == len(entries):
        check_some_run([row.error for row in texts.values()])
    healing = {b: _healing(model, row, heal) for b, row in texts.items()}
    # A recurrent cache cannot be cropped, so it is useless beyond the tokens that are kept.
    is_fed_first = samples > 1 and not (model.is_recurrent and any(one.count for one in healing.values()))
    if is_fed_first:
        # Prefilled once, so that all samples begin with the same keys, values and logits.
        counts = [healing[b].count for b in texts]
        for b, (row, logits) in zip(texts, model.prefilled_before(list(texts.values()), counts), strict=True):
            texts[b], healing[b] = row, replace(healing[b], logits=logits)
    rows: list[list[StateRow]] = []
    removed: list[list[Healing]] = []
    reused = 0
    for b, entry in enumerate(entries):
        if isinstance(entry, _Text):
            group, found = [texts[b]] * samples, [healing[b]] * samples
        else:
            group = [_continued(row) for row in entry]
            found = [_healing(model, row, heal) for row in group]
            reused += sum(row.cached for row in group if row.error is None)
        has_streams = rng is None and b not in texts
        if not has_streams:
            group = [replace(row, stream=replace(fresh[b], sample=i)) for i, row in enumerate(group)]
        rows.append(group)
        removed.append(found)
    seeds = drawn if rng is not None else _continued_seeds(items, drawn)
    return Opened(rows, common_seed(seeds), reused, removed)


def _healing(model: LanguageModel, row: StateRow, heal: bool) -> Healing:
    return healing_of(model, row.token_ids, row.num_seen) if heal and row.error is None else NO_HEALING


@dataclass(frozen=True, slots=True)
class _Text:
    """A batch entry given as text, ids or messages."""

    given: Given


def _items(model: LanguageModel, prompt: Any, thinks: bool) -> list[Given | SequenceState]:
    """Return the texts and states of a prompt; the messages of a conversation as ids."""
    prompt = _without_padding(prompt)
    one = _item(model, prompt, thinks)
    if one is not None:
        return [one]
    found = listed(prompt)
    if isinstance(found, Sequence) and not isinstance(found, str | bytes | bytearray) and found:
        items = [_item(model, item, thinks) for item in found]
        known = [item for item in items if item is not None]
        if len(known) == len(items):
            return known
    raise PromptTypeError(
        "expected a prompt that is a text, `Tokens`, a list of token ids, a list of messages, a SequenceState, or a list with one or "
        f"more of them, got {_describe(prompt)}. {_advice(prompt)}"
    )


def _item(model: LanguageModel, item: Any, thinks: bool) -> Given | SequenceState | None:
    if is_conversation(item):
        template = ChatTemplate.of(model, None, {})
        messages = [read_content(message, model) for message in item]
        token_ids = template.token_ids(messages, is_open=True)
        found = images_of(messages)
        if found:
            return _seen_state(model, [*token_ids, *([] if thinks else closing_ids(template, token_ids))], found)
        return (*token_ids, *([] if thinks else closing_ids(template, token_ids)))
    return item if isinstance(item, SequenceState) else as_given(item)


def _seen_state(model: LanguageModel, token_ids: Sequence[int], images: Sequence[Any]) -> SequenceState:
    """Return the state of the ids of messages with images, of which nothing is fed yet."""
    ids, spans = expanded(token_ids, images, model)
    check_length(model, ids)
    (seed,) = open_seeds(None, 1)
    row = replace(prompt_row(ids, model, RandomStream(seed), 0), images=spans)
    return SequenceState(model, ((replace(row, prompt_length=len(row.text(model.tokenizer))),),), seed)


def _without_padding(prompt: Any) -> Any:
    """Return the ids in the output of a tokenizer of transformers, without padding; any other prompt unchanged."""
    if not isinstance(prompt, Mapping) or "input_ids" not in prompt:
        return prompt
    given: list[Any] = [prompt.get(name) for name in ("input_ids", "attention_mask")]
    ids, mask = map(listed, given)
    if not isinstance(ids, list) or not ids or not isinstance(ids[0], list) or mask is None:
        return ids
    return [[i for i, seen in zip(row, kept, strict=True) if seen] for row, kept in zip(ids, mask, strict=True)]


def _common_samples(model: LanguageModel, items: Sequence[Given | SequenceState], num_samples: int | None) -> int:
    """Return S: `num_samples`, where that is above 1, or that of the states; 1 without either. A state without batch entries fits any."""
    states = [item for item in items if isinstance(item, SequenceState)]
    for state in states:
        if state.model is not model:
            raise ModelMismatch(
                f"expected a state of the generator's model {model!r}, got one of {state.model!r}. "
                "Pass its text to this model instead: `generator(str(state))`."
            )
    counts = [state.num_samples for state in states if state.batch_size]
    if counts and not any(counts) and len(states) == len(items):
        return 0  # no rows to continue, whatever the sampler
    given = num_samples if num_samples is not None and num_samples > 1 else None
    samples = given or next(iter(counts), 1) or 1
    odd = next((count for count in counts if count != samples), samples)
    if odd != samples:
        expected = f"1 sample, or {samples}," if given else f"{samples} samples, as another of the list has,"
        advice = "A sampler without `n` draws once per sample of a state; `state.fork(n)` widens a state, `state.best(n)` narrows it."
        advice = advice if odd else "Leave it out: a state without samples cannot be continued."
        raise SampleMismatch(f"expected a state with {expected} got one with {odd}. {advice}")
    return samples


def _widened(state: SequenceState, num_samples: int) -> SequenceState:
    """Return a state of one sample with as many forks of it, so that each is drawn with random numbers of its own."""
    return state.fork(num_samples) if state.batch_size and state.num_samples == 1 else state


def _continued_seeds(items: Sequence[Given | SequenceState], drawn: Sequence[int]) -> list[int]:
    """Return the seed of every batch entry: states keep theirs, texts take those of `drawn`."""
    seeds: list[int] = []
    for item in items:
        seeds += item.seeds if isinstance(item, SequenceState) else [drawn[len(seeds)]]
    return seeds


def _prompt_row(model: LanguageModel, given: Given, stream: RandomStream) -> StateRow:
    try:
        token_ids, num_start = prompt_ids(checked_given(given, model), model)
        if not token_ids:
            raise EmptyPrompt(
                "expected a prompt of one token or more, got an empty text, and the tokenizer adds no token at the beginning. "
                "Pass some text to continue, such as a line break."
            )
        check_length(model, token_ids)
    except (TokenizerError, EmptyPrompt, ContextLengthError) as error:
        return failed_prompt(error, stream)
    return prompt_row(token_ids, model, stream, num_start)


def _continued(row: StateRow) -> StateRow:
    """Return a row of a state, with an error if it has no token to continue."""
    if row.token_ids or row.error is not None:
        return row
    error = EmptyPrompt(
        "expected a row of one token or more, got an empty one, as a slice may return it. Add some text to it."
    )
    return replace(row, error=error, finish_reason="error")


def _advice(prompt: object) -> str:
    """Return what to do about a value that is no prompt; types that are often given in place of one say it in `_no_prompt`."""
    return getattr(
        type(prompt), "_no_prompt", "A message is a dict with `role` and `content`; for a conversation see `Chat`."
    )


def _describe(prompt: object) -> str:
    if isinstance(prompt, list | tuple):
        kinds = sorted({type(item).__name__ for item in prompt})
        return f"a list of {', '.join(kinds)}" if kinds else "an empty list"
    return f"{type(prompt).__name__}"
