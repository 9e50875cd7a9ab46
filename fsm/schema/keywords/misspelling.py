"""`meant_by`: the keyword that an unknown one probably misspells: Damerau-Levenshtein distance one, another case, a plural, `min_length`.
Of insertions only doubled letters count, short keywords have stricter rules, and the value must be well-formed for the keyword; any other
name is an annotation.
"""

from __future__ import annotations

import re

from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.places.shape import VALUE

_LONGEST_NOUN = 6  # `formats` and other plurals of short keywords mean something else
_JOINT = re.compile(r"(?<=[a-zA-Z])[_-](?=[a-zA-Z])")


def meant_by(word: str, value: object) -> str | None:
    """The enforced keyword of which an unknown one is probably a misspelling; None: it is an annotation.

    The value must be well-formed for the keyword. The name differs in case; or by one letter left out, doubled or replaced; or by two
    neighbours swapped; or it has an underscore or a hyphen (`min_length`) and no other difference; or it is a plural (`requireds`, but not
    `types`). Short keywords, and `const`, which takes any value, are too similar to other words for a letter to be left out or replaced.
    """
    letters = _JOINT.sub("", word)
    if word in KEYWORDS.annotations or not (letters.isascii() and letters.isalpha()):
        return None
    is_joined = letters != word
    for keyword, known in KEYWORDS.items():
        if keyword not in KEYWORDS.enforced:
            continue
        is_distinct = len(keyword) > 4 and known.shape is not VALUE
        is_same = letters.lower() in (keyword.lower(), f"{keyword.lower()}s" if len(keyword) > _LONGEST_NOUN else "")
        is_meant = is_same or (not is_joined and _is_slip(word.lower(), keyword.lower(), is_distinct))
        if is_meant and known.shape.fits(value):
            return keyword
    return None


def _is_slip(word: str, keyword: str, is_distinct: bool) -> bool:
    """Whether `word` is `keyword` with at most one slip of a typist."""
    difference = len(word) - len(keyword)
    if word == keyword or abs(difference) > 1:
        return word == keyword
    start = next((n for n, (one, other) in enumerate(zip(word, keyword, strict=False)) if one != other), len(keyword))
    if difference == 1:  # a doubled letter
        return word[start + 1 :] == keyword[start:] and start > 0 and word[start] == word[start - 1]
    if difference == -1:
        return is_distinct and word[start:] == keyword[start + 1 :]
    swapped = keyword[start + 1 : start + 2] + keyword[start] + keyword[start + 2 :]
    return word[start:] == swapped or (is_distinct and word[start + 1 :] == keyword[start + 1 :])
