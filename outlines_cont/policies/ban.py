"""`ban`: a policy that keeps phrases and patterns out of the generated text, or makes them rarer, by backtracking (as the *antislop*
sampler does). Where `TextScan` finds one, the row rewinds to the token that it begins in, avoids that token, and samples another from the
kept logits. A phrase with a factor of f is kept with that probability. Where the retries are spent, or nothing else can be generated, the
row fails, or that match is accepted.

Only if no other first token is left, later tokens of the phrase are drawn otherwise, and then the tokens before it. A pseudorandom
number, a hash of the position, decides once for each position whether a match is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from fsm import Expression
from outlines_cont.checks import check_int, check_one_of, checked_bool, is_number, knows_its_options
from outlines_cont.errors import BanImpossible, OptionError
from outlines_cont.interfaces import LanguageModel
from outlines_cont.policies.branch import FREE, Branch, TokenSet
from outlines_cont.policies.policy import Policy, RowView
from outlines_cont.policies.text_scan import Alternatives, Match, ScanPolicy, ScanState, TextScan
from outlines_cont.text_search.pattern_search import PatternSearch, checked_pattern
from outlines_cont.text_search.phrase_trie import PhraseTrie, SymbolReader

Banned: TypeAlias = str | re.Pattern[str] | Expression

MAX_RETRIES = 1000
MAX_RETRIES_PER_PLACE = 100

_SHOWN_BYTES = 40


@dataclass(frozen=True, slots=True)
class BanRule:
    """One banned phrase or pattern: how it was written, and the part of its probability that it keeps."""

    shown: str
    factor: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Ban(ScanPolicy):
    """Keeps phrases and patterns out of one generated span (piece) of a row. Make one with `ban`.

    Attributes:
        rules: what is banned: the phrases, then the patterns.
        include_prompt, max_retries, max_retries_per_place, on_exhausted, alternatives: see `ban`.
        scan: the search for them.
        made_by: the arguments of `ban`.
    """

    rules: tuple[BanRule, ...]
    include_prompt: bool
    max_retries: int | None = MAX_RETRIES
    max_retries_per_place: int | None = MAX_RETRIES_PER_PLACE
    on_exhausted: Literal["error", "allow"]
    alternatives: int
    made_by: Mapping[str, Any]

    def __repr__(self) -> str:
        more = f", ... ({len(self.rules)} of them)" if len(self.rules) > 3 else ""
        if any(rule.factor for rule in self.rules):
            return f"ban({{{', '.join(f'{rule.shown!r}: {rule.factor}' for rule in self.rules[:3])}{more}}})"
        return f"ban([{', '.join(repr(rule.shown) for rule in self.rules[:3])}{more}])"

    def for_model(self, model: LanguageModel) -> Policy[Any]:
        """Return the ban over the tokens of a model."""
        bound = self.over(model)
        return bound if self.alternatives == 1 else Alternatives(bound, self.alternatives, model.tokenizer)

    def initial(self, row: RowView) -> ScanState:
        """Return the state before the piece."""
        return self.known_scan.initial(row, include_prompt=self.include_prompt)

    def branches(self, state: ScanState, row: RowView) -> list[Branch]:
        """Rewind where a match ends that is refused; else allow all tokens."""
        match = self._refused(state.matches, row) if state.matches else None
        return FREE if match is None else [self._back(state, match, row)]

    def at_end(self, state: ScanState, row: RowView) -> Branch | None:
        """Rewind where something is banned because the text ends here, such as a whole word."""
        match = self._refused(self.known_scan.at_end(state), row)
        return None if match is None else self._back(state, match, row)

    def rewound(self, before: ScanState, after: ScanState, row: RowView) -> ScanState:
        """Return the state at the position rewound to, with the rule that was refused, for errors."""
        matches = before.matches or self.known_scan.at_end(before)
        return replace(after, refused=matches[0].rule) if matches else after

    def give_up(self, state: ScanState, row: RowView, reason: str) -> ScanState:
        """Accept the next match if `on_exhausted` is `allow`, else raise `BanImpossible`."""
        if self.on_exhausted == "allow":
            return replace(state, matches=(), num_passed=state.num_passed + (not state.matches))
        rule = state.matches[0].rule if state.matches else state.refused
        what = "what is banned" if rule is None else repr(self.rules[rule].shown)
        tail = self.known_scan.tokenizer.text_bytes(row.token_ids[-_SHOWN_BYTES:])[-_SHOWN_BYTES:]
        raise BanImpossible(
            f"expected a text without {what} after {tail.decode(errors='replace')!r}, but {reason}. Loosen the constraint or ban less, "
            "raise `max_retries`, or accept it with `on_exhausted='allow'`."
        )

    def _refused(self, matches: Sequence[Match], row: RowView) -> Match | None:
        """Return the first match that is refused. The decision on a position is the same at every call."""
        for match in matches:
            factor = self.rules[match.rule].factor
            if not factor or row.uniform(row.piece_start, *match.key) >= factor:
                return match
        return None

    def _back(self, state: ScanState, match: Match, row: RowView) -> Branch:
        """Return the branch that rewinds to the first token of a match, and draws another one there.

        That token is avoided, as something else might follow it: if no other token is left it is drawn again, and then the next
        token of the match is drawn otherwise. The last one is excluded; if that leaves no token, the engine rewinds further. So all
        texts are tried before the row fails. Where no token of the match was drawn, the first one is excluded, so that the engine
        rewinds to the last token before it that was drawn.
        """
        end = len(row.token_ids)
        first = max(row.piece_start + match.token, row.first_open)
        if first >= end:
            self.give_up(state, row, "its text was streamed already")
            return FREE[0]
        drawn = [i for i in range(first, end) if row.was_drawn(i)] or [first]
        index = next((i for i in drawn[:-1] if row.token_ids[i] not in row.excluded(i)), drawn[-1])
        refused = TokenSet.of([row.token_ids[index]])
        if index == drawn[-1]:
            return Branch(backtrack=end - index, exclude=refused)
        return Branch(backtrack=end - index, avoid=refused)


@knows_its_options()
def ban(
    phrases: Banned | Iterable[Banned] | Mapping[Banned, float],
    *,
    ignore_case: bool = True,
    whole_word: bool = False,
    include_prompt: bool = False,
    horizon: int | None = None,
    max_retries: int | None = MAX_RETRIES,
    max_retries_per_place: int | None = MAX_RETRIES_PER_PLACE,
    on_exhausted: Literal["error", "allow"] = "error",
    alternatives: int = 1,
) -> Ban:
    """Return a policy that keeps phrases out of a text, independently of the tokens that spell them.

    Args:
        phrases: texts, patterns of `re.compile`, or expressions of `fsm`, one or several; or a mapping from these to factors from 0
            to 1. A phrase keeps that part of its probability: 0 bans it, 1 changes nothing.
        ignore_case: phrases are found in any case, as `str.casefold` compares texts. Patterns have flags of their own.
        whole_word: phrases are found where no letter, digit or underscore is before or after them, as far as they begin or
            end with one. Patterns use `\\b`.
        include_prompt: a phrase is found, too, if it begins in the text before the piece. Only the piece is changed.
        horizon: the most characters of a match of a pattern; needed for a pattern whose matches have no maximum length.
        max_retries: how often a piece may be rewound; None for no limit.
        max_retries_per_place: how many tokens are refused at one position before the row rewinds further; None for no limit.
        on_exhausted: `error` fails the row with `BanImpossible` if nothing else can be generated or the retries are spent;
            `allow` accepts that one match.
        alternatives: for a row that takes the most probable token: at a position where something was refused this many continuations
            are generated to the end of a word, and the most probable one is kept. 1 takes the next most probable token; 4 make the
            output more probable, and cost the forwards of their tokens. A row that draws at random keeps what it draws. The comparison
            is no part of a state: a text that was cut within it is resumed from the continuation that it has then.

    Raises:
        OptionError: a phrase is empty or not a text, a factor is not from 0 to 1, a pattern cannot be searched for.

    Cost: 1 us per character of the phrases, once; then 2 us per token for any number of them. Patterns take 0.3 us per byte and
    position where one may have begun.
    """
    check_int("alternatives", alternatives, 1)
    check_int("horizon", horizon, 1, is_optional=True)
    check_int("max_retries", max_retries, 0, is_optional=True)
    check_int("max_retries_per_place", max_retries_per_place, 1, is_optional=True)
    check_one_of("on_exhausted", on_exhausted, ("error", "allow"))
    for name, flag in (("ignore_case", ignore_case), ("whole_word", whole_word), ("include_prompt", include_prompt)):
        checked_bool(flag, name)
    reader = SymbolReader(ignore_case, whole_word)
    factors = {banned: factor for banned, factor in _factors(phrases) if factor < 1}
    texts = _rules_by_symbols(factors, reader)
    patterns = [
        (checked_pattern(banned, horizon), factors[banned]) for banned in factors if not isinstance(banned, str)
    ]
    numbered = {number: pattern for number, (pattern, _) in enumerate(patterns, len(texts))}
    made_by = {
        "phrases": factors,
        "ignore_case": ignore_case,
        "whole_word": whole_word,
        "include_prompt": include_prompt,
        "horizon": horizon,
        "max_retries": max_retries,
        "max_retries_per_place": max_retries_per_place,
        "on_exhausted": on_exhausted,
        "alternatives": alternatives,
    }
    return Ban(
        made_by=made_by,
        rules=(*texts.values(), *(BanRule(pattern.shown, factor) for pattern, factor in patterns)),
        scan=TextScan(reader, PhraseTrie(texts), PatternSearch(numbered)),
        include_prompt=include_prompt,
        max_retries=max_retries,
        max_retries_per_place=max_retries_per_place,
        on_exhausted=on_exhausted,
        alternatives=alternatives,
    )


def _rules_by_symbols(factors: Mapping[Banned, float], reader: SymbolReader) -> dict[tuple[str, ...], BanRule]:
    """Return the rules of phrases; of equal phrases the smallest factor counts."""
    rules: dict[tuple[str, ...], BanRule] = {}
    for banned, factor in factors.items():
        if isinstance(banned, str):
            symbols = reader.phrase(banned)
            if symbols not in rules or factor < rules[symbols].factor:
                rules[symbols] = BanRule(banned, factor)
    return rules


def _factors(phrases: object) -> list[tuple[Banned, float]]:
    if isinstance(phrases, Mapping):
        items = [*phrases.items()]
    elif isinstance(phrases, str | bytes | re.Pattern | Expression) or not isinstance(phrases, Iterable):
        items = [(phrases, 0.0)]
    else:
        items = [(phrase, 0.0) for phrase in phrases]
    for banned, factor in items:
        _check_banned(banned)
        if not is_number(factor) or not 0 <= factor <= 1:
            told = f"expected a factor from 0 to 1 for {banned!r}, the part of its probability that it keeps, got {factor!r}"
            raise OptionError(f"{told}. Write 0 to ban it.", "phrases")
    return items


def _check_banned(banned: object) -> None:
    if isinstance(banned, re.Pattern | Expression):
        return
    if not isinstance(banned, str) or not banned:
        told = f"expected phrases that are texts of one character or more, patterns or expressions, got {banned!r}"
        raise OptionError(f"{told}. Omit it, or write what is to be banned as a str.", "phrases")
    if any("\ud800" <= character <= "\udfff" for character in banned):
        told = f"expected phrases that can be encoded in UTF-8, got {banned!r} with a lone surrogate"
        raise OptionError(told, "phrases")
