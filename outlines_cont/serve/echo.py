"""`Echo`: the prompt of a completion with its log-probabilities, as replies repeat it: OpenAI's `echo`, and `prompt_logprobs` of vLLM.
`echo_of` computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outlines_cont.engine.scoring import TokenScore
from outlines_cont.serve.requests import CompletionRequest
from outlines_cont.state.row import StateRow


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as a reply repeats it.

    Attributes:
        text: the prompt, if the text of the reply begins with it, else empty.
        token_ids: its tokens.
        scores: of all of them but the first; empty where none are asked for.
        in_columns: whether the log-probabilities of the reply begin with them.
        is_listed: whether the reply has them as `prompt_logprobs`.
    """

    text: str
    token_ids: tuple[int, ...]
    scores: Sequence[TokenScore]
    in_columns: bool
    is_listed: bool


def echo_of(model: Any, prompt: Any, row: StateRow, request: CompletionRequest) -> Echo | None:
    """Return the prompt as the reply repeats it, None where it does not. Cost: where its tokens are scored they are fed."""
    if not request.echo and request.prompt_logprobs is None:
        return None
    tops = [request.prompt_logprobs, request.logprobs if request.echo else None]
    wanted = [top for top in tops if top is not None]
    scores: Sequence[TokenScore] = ()
    if wanted:
        (scores,) = model.score_rows([row], [1], max(wanted))
    text = prompt if isinstance(prompt, str) else model.tokenizer.decode(list(row.token_ids))
    return Echo(
        text if request.echo else "",
        row.token_ids,
        scores,
        in_columns=bool(request.echo) and request.logprobs is not None,
        is_listed=request.prompt_logprobs is not None,
    )
