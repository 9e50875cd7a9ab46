"""`Field`: the texts that a value of JSON might have after a row, spelled as tokens, and `FieldLaw`, their probabilities.

The tokenizer continues the row with a text up to its last token; any token counts as the last that completes the text, and that the
language allows, such as `"`, `",` or `"}` behind a string. A number ends with the next token that begins with no digit. A *path* is such a
spelling with its last token: no path begins another, so the probability of a text is the sum of its paths, each the product of the model's
probabilities of its tokens, divided by that of all texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fsm import TokenFSM
from outlines_cont.errors import TokenizerError
from outlines_cont.generation.choices.json_values import Value
from outlines_cont.generation.choices.option_law import ChosenToken, chosen_tokens, drawn, log_sum, normalized
from outlines_cont.generation.choices.spelling_tree import Path, SpellingTree
from outlines_cont.interfaces import LanguageModel
from outlines_cont.models.tokenizer.special_names import encode_bytes_inside

_MAX_PATHS = 4_096
_DIGITS = frozenset(b"0123456789.eE+-")


@dataclass(frozen=True, slots=True)
class Field:
    """The texts that a value might have.

    Attributes:
        texts: each text once, two or more.
        paths: the paths of all texts.
        owners: of each path the index of its text.
    """

    texts: tuple[bytes, ...]
    paths: tuple[Path, ...]
    owners: tuple[int, ...]

    @classmethod
    def of(
        cls, model: LanguageModel, token_fsm: TokenFSM, values: Sequence[Value], before: Sequence[int], state: int
    ) -> Field | None:
        """Return the values after a row with the ids `before`, which is in a state; None where one has no path, or there are too many.

        Cost: the tokenizer encodes each value, and a mask is computed for each of their last tokens but for those that are known.
        """
        texts = tuple(dict.fromkeys(value.text for value in values))
        number = {text: index for index, text in enumerate(texts)}
        paths: dict[Path, int] = {}
        for value in values:
            found = _paths(model, token_fsm, value, before, state)
            paths.update(dict.fromkeys(found, number[value.text]))
            if len(paths) > _MAX_PATHS:
                return None
        if len({*paths.values()}) < len(texts):
            return None
        return cls(texts, tuple(paths), tuple(paths.values()))


def _paths(model: LanguageModel, token_fsm: TokenFSM, value: Value, before: Sequence[int], state: int) -> list[Path]:
    """Return the paths of a value; none where the tokenizer cannot spell it."""
    try:
        spelled = tuple(encode_bytes_inside(model.tokenizer, value.rest, before))
    except TokenizerError:
        return []
    table = model.tokenizer.token_bytes
    if not spelled or b"".join(table[token_id] or b"" for token_id in spelled) != value.rest:
        return []
    *first, last = spelled
    for token_id in first:
        state = token_fsm.next_state(state, token_id)
    rest = table[last] or b""
    ends = [(token_id, data) for token_id in token_fsm.allowed_token_ids(state).tolist() if (data := table[token_id])]
    begin = tuple(first)
    found = [(*begin, token_id) for token_id, data in ends if data.startswith(rest) and _is_closed(value, data, rest)]
    if value.is_open and last in (token_id for token_id, _ in ends):
        after = token_fsm.allowed_token_ids(value.state).tolist()
        found += [(*spelled, token_id) for token_id in after if (data := table[token_id]) and data[0] not in _DIGITS]
    return found


def _is_closed(value: Value, data: bytes, rest: bytes) -> bool:
    """Return whether a token that begins with the rest of a value ends it."""
    return not value.is_open or (len(data) > len(rest) and data[len(rest)] not in _DIGITS)


class FieldLaw:
    """The probabilities of the texts of a field by a tree that is scored, at a temperature.

    Attributes:
        conditional: of each text the logarithm of its probability among all, at temperature 1.
        share: how probable it is that the model writes one of the texts.
        log_probabilities: of each text the logarithm of the probability with which it is drawn.
    """

    def __init__(
        self, field: Field, tree: SpellingTree, temperature: float = 1.0, prior: Sequence[float] | None = None
    ) -> None:
        """Take a field, and its tree; `prior` are the logarithms of what the probability of each text is divided by.

        At a temperature t the probabilities of the texts are raised to 1 / t, and those of the paths of each.

        Raises:
            DeadEnd: the probability of each text is zero.
        """
        self._field = field
        self._logs = [tree.logprobs(i) for i in range(len(field.paths))]
        sums = [*map(math.fsum, self._logs)]
        paths_of: list[list[int]] = [[] for _ in field.texts]
        for path, text in enumerate(field.owners):
            paths_of[text].append(path)
        weights = [log_sum([sums[path] for path in paths]) for paths in paths_of]
        self.share = math.exp(log_sum(weights))
        self.conditional = normalized(weights)
        own = self.conditional if prior is None else [a - b for a, b in zip(self.conditional, prior, strict=True)]
        self.log_probabilities = normalized(own, temperature)
        self._of_paths = [-math.inf] * len(sums)
        for paths, log, weight in zip(paths_of, self.log_probabilities, weights, strict=True):
            if weight > -math.inf:
                for path, inner in zip(paths, normalized([sums[path] for path in paths], temperature), strict=True):
                    self._of_paths[path] = log + inner

    @property
    def best(self) -> int:
        """The most probable path of the most probable text, the first of equal ones."""
        text = max(range(len(self._field.texts)), key=self.log_probabilities.__getitem__)
        paths = [path for path, owner in enumerate(self._field.owners) if owner == text]
        return max(paths, key=self._of_paths.__getitem__)

    def draw(self, uniform: float) -> int:
        """Return the path for a random number in [0, 1)."""
        return drawn(self._of_paths, uniform)

    def tokens(self, path: int) -> list[ChosenToken]:
        """Return the tokens of a path."""
        return chosen_tokens(self._field.paths, path, self._logs[path], self._of_paths)
