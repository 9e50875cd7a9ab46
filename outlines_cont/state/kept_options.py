"""`KeptOptions`: the options with which a piece is resumed, as the file of a state holds them: plain values that pydantic checks. Of what a
file cannot hold, such as a policy of the user, it has the name and a description, so that who resumes the piece can be told. `Count`,
`Counts` and `Finite` are the numbers of a file; pydantic checks them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

Count = Annotated[int, Field(ge=0, lt=2**63)]
Counts = Annotated[frozenset[Count], PlainSerializer(sorted)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class StrictRecord(BaseModel):
    """A part of the description in a file: of the stated types, and with no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class BanRecord(StrictRecord):
    """A `policies.ban`: its texts and patterns (with the flags of `re`), each with a factor, and its other arguments."""

    kind: Literal["ban"] = "ban"
    texts: list[tuple[str, Finite]] = []
    patterns: list[tuple[str, int, Finite]] = []
    ignore_case: bool
    whole_word: bool
    include_prompt: bool
    horizon: Count | None
    max_retries: Count | None
    max_retries_per_place: Count | None
    on_exhausted: Literal["error", "allow"]
    alternatives: Count


class ReplaceRecord(StrictRecord):
    """A `policies.replace`."""

    kind: Literal["replace"] = "replace"
    texts: list[tuple[str, str]]
    at_most: Count | None


class GuidanceRecord(StrictRecord):
    """A `Guidance`; `special` is None for a text, else that of `Tokens`."""

    negative_prompt: str | list[Count]
    special: bool | None = None
    scale: Finite


class ThinkingRecord(StrictRecord):
    """A `Thinking` with the sampler of the answer."""

    begin: str | None
    end: str | None
    max_tokens: Count | None


class KeptOptions(StrictRecord):
    """The options of a piece; the defaults are those of a call.

    Attributes:
        heal: the piece was left before the end of its prompt was respelled, which begins again.
        draft, thinking: `own` is that of the generator.
        reply: of a chat, `tool_choice` and `max_calls`.
        lost: what a file cannot hold, by the names of the options, with the names of its types.
    """

    stop_at: tuple[str, ...] = ()
    min_tokens: Count = 0
    keep_stop: bool = False
    stop_in_prompt: bool = False
    stop_token_ids: tuple[Count, ...] = ()
    policies: list[BanRecord | ReplaceRecord] = []
    heal: bool = False
    guidance: GuidanceRecord | None = None
    draft: Literal["own", "none", "lookup"] = "own"
    thinking: Literal["own", "none"] | ThinkingRecord = "own"
    reply: tuple[str | tuple[str, ...], Count | None] | None = None
    lost: dict[Literal["policies", "draft", "thinking", "against"], str] = {}
