"""`ExtractOptions`: the options of `outlines-cont extract` as a dataclass, and the enumerations of their values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from outlines_cont.defaults import DEFAULT_MAX_TOKENS
from outlines_cont.pipelines.rows.row import InputFormat


class DType(StrEnum):
    """Float types of weights."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Draft(StrEnum):
    """The draft of a record for speculative decoding; see docs/draft.md."""

    NONE = "none"
    LOOKUP = "lookup"


class Whitespace(StrEnum):
    """Spaces in the JSON that a model writes, as in `fsm.json_schema`."""

    NONE = "none"
    ONE_SPACE = "one_space"
    SPACED = "spaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractOptions:
    """One attribute per option.

    Attributes:
        input: a .jsonl, .txt, .csv or .parquet file, or `-`.
        schema: a JSON Schema file, or `module:Class`.
        model: hub id or path; None is the bundled model.
        prompt: a Jinja template file; None is the default prompt.
        chat: whether a prompt is a message of the user, to which the record is the reply.
        system: the system message before it, or None.
        output: a file; None is the standard output.
        resume: continue an existing output.
        overwrite: replace an output that exists.
        batch_size: rows that run together, 1 or more.
        max_tokens: the most tokens of a record, 1 or more.
        text_field: the field of a JSON row that holds the message.
        keep_text: whether the message stands in the output, too.
        input_format: what the lines of the input are.
        device: where the model runs; None leaves it to transformers, that is the CPU.
        dtype: the float type of the weights; None is the checkpoint's.
        whitespace: the spaces in a record as the model writes it.
        any_order: whether the members of an object may come in any order.
        sampler: how tokens are chosen; see `sampler.parse_sampler`.
        seed: of the random numbers; each row has its own, by its prompt.
        draft: what guesses the next tokens, for fewer forwards.
        samples: how many samples are compared with each record.
        details: whether log-probabilities, tokens and agreement stand in the output.
        report: an HTML page to write.
        gold: the field of a row that holds the right record, for the report.
        calibration: what `save_calibration` of an earlier run has written.
        save_calibration: where to write what the agreement of samples is worth.
        workers: how many processes run the model, each with one of its own.
        ray_address: of a cluster of Ray; None is this machine.
    """

    input: str
    schema: str
    model: str | None = None
    prompt: Path | None = None
    chat: bool = False
    system: str | None = None
    output: Path | None = None
    resume: bool = False
    overwrite: bool = False
    batch_size: int = 32
    max_tokens: int = DEFAULT_MAX_TOKENS
    text_field: str = "text"
    keep_text: bool = False
    input_format: InputFormat = InputFormat.AUTO
    device: str | None = None
    dtype: DType | None = None
    whitespace: Whitespace = Whitespace.ONE_SPACE
    any_order: bool = False
    sampler: str = "greedy"
    seed: int = 0
    draft: Draft = Draft.NONE
    samples: int = 0
    details: bool = False
    report: Path | None = None
    gold: str | None = None
    calibration: Path | None = None
    save_calibration: Path | None = None
    workers: int = 1
    ray_address: str | None = None

    @property
    def has_details(self) -> bool:
        """Whether what is known of records stands in the output, because it was asked for, or is needed for what was."""
        return self.details or self.samples > 0 or self.report is not None or self.save_calibration is not None

    @property
    def has_workers(self) -> bool:
        """Whether the model runs in other processes."""
        return self.workers > 1 or self.ray_address is not None

    @property
    def schema_options(self) -> dict[str, Any]:
        """The options of `fsm.json_schema`."""
        return {"whitespace": self.whitespace.value, "key_order": "any" if self.any_order else "schema"}
