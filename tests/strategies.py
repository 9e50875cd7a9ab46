"""Hypothesis strategies that several test files share."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Sample:
    """A pattern in two spellings of one meaning, with a text that has a good chance to match.

    `python` is for `re`; `ecma` is the same in ECMA-262, where the strategy knows that dialect.
    """

    python: str
    text: str
    ecma: str = ""


# What ECMA-262 means by `.` and `\s`, in Python's spelling.
_ECMA_DOT = r"[^\n\r\u2028\u2029]"
_ECMA_SPACE = r"[\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"

_PYTHON_ATOMS = [
    *(Sample(c, c) for c in "abkKsSßſéİıǅ٣😀\U00010400"),
    *(Sample(p, t) for p, t in [(r"\n", "\n"), (r"\.", "."), (".", "b"), (r"\x41", "A"), (r"\u017f", "ſ")]),
    *(Sample(p, t) for p, t in [(r"\d", "5"), (r"\w", "é"), (r"\s", " "), (r"\D", "a"), (r"\W", "."), (r"\S", "k")]),
    *(Sample(p, t) for p, t in [("[ab]", "b"), ("[^a]", "K"), (r"[a-c\d]", "٣"), (r"[^\W\d]", "ß"), ("[^\n-z]", "~")]),
    *(Sample(p, t) for p, t in [("[k-s]", "s"), (r"[\U00010400-\U00010410]", "\U00010428"), ("[]x]", "]"), ("[^]x]", "a")]),
    *(Sample(p, t) for p, t in [("(?i:k)", "\u212a"), ("(?-i:k)", "k"), ("(?i:[^k])", "a"), ("(?s:.)", "\n")]),
    *(Sample(p, t) for p, t in [(r"(?a:\w)", "a"), ("(?ai:s)", "S"), ("(?i:ß)", "ẞ"), ("(?x: a # b\n)", "a"), ("(?i:i)", "İ")]),
    *(Sample(p, "") for p in ["^", "$", r"\A", r"\Z", "(?m:^)", "(?m:$)", "", "(?#note)"]),
]
_ECMA_ATOMS = [
    *(Sample(c, c, c) for c in "abéß😀"),
    *(Sample(p, t, p) for p, t in [(r"\n", "\n"), (r"\.", "."), ("[ab]", "b"), ("[^a]", "\n"), ("[a-c.]", "c"), (r"\\", "\\")]),
    *(Sample(p, t, p) for p, t in [("^", ""), ("", ""), (r"\x41", "A"), (r"\u00e9", "é"), ('"', '"'), ("[^\n-z]", "~")]),
    Sample(r"\Z", "", "$"),
    Sample(_ECMA_DOT, "b", "."),
    Sample("[0-9]", "5", r"\d"),
    Sample("[^0-9]", "٣", r"\D"),
    Sample("[A-Za-z0-9_]", "a", r"\w"),
    Sample(_ECMA_SPACE, "\ufeff", r"\s"),
    Sample("[^" + _ECMA_SPACE[1:], "\x1c", r"\S"),
    Sample(r"[\s\S]", "\n", "[^]"),
    Sample(r"\U0001f600", "😀", r"\ud83d\ude00"),
    Sample("\U0001f600", "😀", r"\u{1F600}"),
]

_QUANTIFIERS = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,3}", "{2,}", "{0}", "*?", "+?", "??", "{1,3}?"])
_FLAGS = st.sampled_from(["", "", "", "(?i)", "(?s)", "(?m)", "(?a)", "(?im)", "(?ai)", "(?sx)", "(?u)"])


def _join(parts: list[Sample]) -> Sample:
    return Sample("".join(p.python for p in parts), "".join(p.text for p in parts), "".join(p.ecma for p in parts))


def _choose(args: tuple[list[Sample], int]) -> Sample:
    options, chosen = args
    python, ecma = "|".join(o.python for o in options), "|".join(o.ecma for o in options)
    return Sample(f"(?:{python})", options[chosen % len(options)].text, f"(?:{ecma})")


def _repeat(args: tuple[Sample, str, int]) -> Sample:
    body, quantifier, times = args
    return Sample(f"(?:{body.python}){quantifier}", body.text * times, f"({body.ecma}){quantifier}")


def _grow(inner: st.SearchStrategy[Sample]) -> st.SearchStrategy[Sample]:
    return st.one_of(
        st.lists(inner, max_size=4).map(_join),
        st.tuples(st.lists(inner, min_size=1, max_size=3), st.integers(0, 2)).map(_choose),
        st.tuples(inner, _QUANTIFIERS, st.integers(0, 3)).map(_repeat),
    )


def python_patterns() -> st.SearchStrategy[Sample]:
    """Patterns of everything that `fsm.regex` supports, with flags; some are refused for their anchors."""
    bodies = st.recursive(st.sampled_from(_PYTHON_ATOMS), _grow, max_leaves=12)
    return st.builds(lambda flags, body: Sample(flags + body.python, body.text), _FLAGS, bodies)


def ecma_patterns() -> st.SearchStrategy[Sample]:
    """Patterns with one meaning in both dialects, each in its spelling."""
    return st.recursive(st.sampled_from(_ECMA_ATOMS), _grow, max_leaves=12)


@st.composite
def texts_near(draw: st.DrawFn, text: str, alphabet: str = "abkK\u212asSſß\n .é5٣İıi😀\U00010400\U00010428~") -> str:
    """`text` with up to three characters put in, taken out or replaced."""
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 1)))
        text = text[:start] + draw(st.text(alphabet, max_size=1)) + text[end:]
    return text
