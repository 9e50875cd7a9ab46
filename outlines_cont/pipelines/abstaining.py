"""`Abstaining`: the option of an extractor to withhold values that are too uncertain. `abstained` makes a record in which they are None;
`token_confidence` tells how sure each value of a record is by its own tokens alone, for an extractor without samples.

The confidence of a value is the share of samples that agree with it, or the number of `token_confidence`, and with a calibration the
probability that a value with such a number is right.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from outlines_cont.checks import check, check_one_of, is_number
from outlines_cont.interfaces import Tokenizer
from outlines_cont.pipelines.calibration import Calibration, value_logprobs
from outlines_cont.pipelines.outcome import Confidence, Outcome, Withheld

if TYPE_CHECKING:
    from outlines_cont.state.row import StateRow

DEFAULT_SAMPLES = 5
"""The samples of each row, if values may be withheld by agreement, and no number is given."""


@dataclass(frozen=True, slots=True)
class Abstaining:
    """How sure the values of records must be.

    Attributes:
        confidence: what it is made from.
        below: values with less confidence are withheld; None withholds none.
        calibration: converts the confidence to the probability that a value is right; None leaves it as it is.
    """

    confidence: Confidence = "agreement"
    below: float | None = None
    calibration: Calibration | None = None

    @classmethod
    def of(cls, confidence: Any, below: Any, calibration: Any) -> Abstaining | None:
        """Return the checked options of an extractor; None if none of them is given. Raise `OptionError` for others."""
        check_one_of("confidence", confidence, (None, "agreement", "cheap"))
        is_share = below is None or (is_number(below) and 0 <= below <= 1)
        check("abstain_below", below, is_share, "a number from 0 to 1, or None")
        is_known = calibration is None or isinstance(calibration, Calibration)
        check("calibration", calibration, is_known, "a `Calibration`, such as `Calibration.load(path)`, or None")
        if confidence is None and below is None and calibration is None:
            return None
        return cls(confidence or "agreement", below, calibration)

    def applied(self, outcome: Outcome, row: StateRow, tokenizer: Tokenizer) -> Outcome:
        """Return the outcome of a row with the confidence of its values, and without those that are too uncertain."""
        certainty = outcome.agreement if self.confidence == "agreement" else token_confidence(row, tokenizer)
        sure = {path: self._calibrated(path, number) for path, number in certainty.items()}
        outcome = replace(outcome, confidence=sure, certainty={} if self.confidence == "agreement" else certainty)
        if self.below is None:
            return outcome
        record, withheld = abstained(outcome.record, sure, self.below)
        if not withheld:
            return outcome
        return replace(outcome, record=record, value=None, withheld=withheld)

    def _calibrated(self, path: str, number: float) -> float:
        return number if self.calibration is None else self.calibration.confidence(path, number)


def abstained(record: Any, confidence: Mapping[str, float], below: float) -> tuple[Any, dict[str, Withheld]]:
    """Return a copy of a record with None for each value whose confidence is below a limit, and these values by their paths.

    A value is a scalar, or an empty list or object; one without a confidence stays.
    """
    found = dict[str, Withheld]()

    def kept(path: str, value: Any) -> Any:
        sure = confidence.get(path)
        if sure is None or sure >= below or value is None:
            return value
        found[path] = Withheld(value, sure, f"the confidence of {json.dumps(value)} is {sure:.2f}, below {below:g}")
        return None

    holder = [json.loads(json.dumps(record))]
    stack: list[tuple[Any, Any, str]] = [(holder, 0, "")]
    while stack:
        container, key, path = stack.pop()
        value = container[key]
        if value and isinstance(value, dict):
            stack += [(value, name, f"{path}.{name}" if path else name) for name in reversed(value)]
        elif value and isinstance(value, list):
            stack += [(value, at, f"{path}[{at}]") for at in reversed(range(len(value)))]
        else:
            container[key] = kept(path, value)
    return holder[0], found


def token_confidence(row: StateRow, tokenizer: Tokenizer) -> dict[str, float]:
    """Return for each value of a record, by its path, its probability under the schema after what stands before it, from 0 to 1.

    The last generated span of the row must be the record. A value of which all tokens were forced has 1. Of two measures that need no
    sample either, the least probability of a token tells right values from wrong ones less well, and so does the entropy of the model
    before them, which takes a forward more (`benchmarks.quality`).
    """
    return {path: math.exp(min(log, 0.0)) for path, log in value_logprobs(row, tokenizer).items()}
