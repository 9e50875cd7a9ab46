"""`open_guidance`: the negative prompts of classifier-free guidance as rows, one for each guided batch entry (equal prompts share one). One
that is used more than once, or that the prefix cache can keep, is prefilled before the rows run if that saves at least 64 tokens. A
negative prompt that cannot be fed is the error of its rows, or of the call if no batch entry can run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from outlines_cont.engine.guided.guidance import Guidance
from outlines_cont.errors import ContextLengthError, EmptyPrompt, OptionError, TokenizerError
from outlines_cont.generation.options import check_ids
from outlines_cont.interfaces import LanguageModel
from outlines_cont.sampling.random_stream import RandomStream
from outlines_cont.state.prompt_row import check_length, check_some_run, failed_prompt
from outlines_cont.state.row import StateRow
from outlines_cont.state.tokens import Tokens, checked_given, prompt_ids

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
