"""`meant_by`: the keyword that an unknown one probably misspells: Damerau-Levenshtein distance one, another case, a plural, `min_length`.

Of inserted letters only doubled ones count, short keywords have stricter rules, and the value must be well-formed for the keyword; any
other word remains an annotation.
"""

from __future__ import annotations

import re

from fsm.schema.keywords.keyword import KEYWORDS
from fsm.schema.places.shape import VALUE

_LONGEST_NOUN = 6  # `formats` says something else
_JOINT = re.compile(r"(?<=[a-zA-Z])[_-](?=[a-zA-Z])")


def meant_by(word: str, value: object) -> str | None:
    """The enforced keyword that an unknown one looks like, misspelt; None: it is an annotation.

    A misspelling is made of letters and takes the value of the keyword. It differs in case, or by what a typist does: one letter left
    out, doubled or replaced, two neighbours swapped. Short keywords, and `const`, which takes any value, are too near to other words for
    a letter to be left out or replaced. `min_length` and `min-length` are spelled as elsewhere, with nothing else amiss; `requireds` is a
    plural, as `types` and `formats` need not be.
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
    """Whether a typist who means `keyword` may write `word`, by one slip at most."""
    difference = len(word) - len(keyword)
    if word == keyword or abs(difference) > 1:
        return word == keyword
    start = next((n for n, (one, other) in enumerate(zip(word, keyword, strict=False)) if one != other), len(keyword))
    if difference == 1:  # one letter more: the one before it, again
        return word[start + 1 :] == keyword[start:] and start > 0 and word[start] == word[start - 1]
    if difference == -1:
        return is_distinct and word[start:] == keyword[start + 1 :]
    swapped = keyword[start + 1 : start + 2] + keyword[start] + keyword[start + 2 :]
    return word[start:] == swapped or (is_distinct and word[start + 1 :] == keyword[start + 1 :])
