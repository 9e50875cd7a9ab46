"""`option_probabilities`: the exact probability of every option of a choice after each row of a prompt (`Probabilities`).

The prefixes of the options' spellings are a tree of tokens. It is traversed breadth first, all rows of the prompt together, and every
prefix continues the keys and values of its parent. Two log-probabilities flow down the tree, and are summed at the options: the model's
own (conditional log-probabilities along the spellings that count), and the constrained one (renormalised over the tokens that the token
FSM allows, along all spellings, with forced tokens appended as the engine does). A prefix is fed only where one of them needs its logits:
the constrained one does not once a single option is possible. The rest of a spelling that nothing else shares is fed at once.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal, cast

import torch

from outlines_cont.checks import check_int, check_one_of, checked_bool
from outlines_cont.engine.row import invalid_logits
from outlines_cont.errors import ContextLengthError, DeadEnd, OptionError, located, shortened
from outlines_cont.generation.choices.option_law import OptionLaw
from outlines_cont.generation.choices.spelling_tree import SpellingTree, score
from outlines_cont.generation.exact_choice import ExactChoice
from outlines_cont.generation.option_prior import OptionPrior
from outlines_cont.generation.piece_maker import PieceMaker, squeezed
from outlines_cont.generation.prompt import open_prompt
from outlines_cont.immutable import Immutable
from outlines_cont.models.tokenizer.special_names import encode_bytes_inside
from outlines_cont.policies.constraint import CheckedConstraint, Constraint
from outlines_cont.state.row import StateRow
from outlines_cont.state.tokens import check_length

Spellings = Literal["canonical", "all"]
MAX_PREFIXES = 4096
_LOGITS_AT_ONCE = 256  # a bound for the memory of logits
_NONE = -math.inf  # the log-probability that does not flow into a prefix


@dataclass(frozen=True, eq=False, repr=False)
class Probabilities(Immutable, Mapping[Any, float]):
    """The probabilities of the options after one row: a read-only mapping from each option to that of its draw; they sum to 1.

    It compares with other mappings by value.

    Attributes:
        options: the texts, in the given order; of a field of JSON its values, in the order of their texts.
        log_probabilities: for each option, the natural logarithm of the probability with which it is drawn at temperature 1.
        log_shares: the same of the model's own probability, without the constraint.
        log_conditional: the same of the model's own probability, conditioned on the options: the law of a choice with `exact=True`. None
            for the shares divided by their sum.
        log_prior: with `against`, the same of the probability of the option without the content of the prompt, else None.
    """

    options: tuple[Any, ...]
    log_probabilities: tuple[float, ...]
    log_shares: tuple[float, ...]
    log_conditional: tuple[float, ...] | None = None
    log_prior: tuple[float, ...] | None = None

    def __getitem__(self, option: Any) -> float:
        return self._by_option(self.log_probabilities)[option]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.options)

    def __len__(self) -> int:
        return len(self.options)

    def __repr__(self) -> str:
        shares = self.shares
        lines = (f"{option!r}: {self[option]:.4g} (share {shares[option]:.4g})" for option in self)
        return f"Probabilities({', '.join(lines)})"

    @property
    def shares(self) -> dict[Any, float]:
        """The model's own probability of each option, without the constraint, as a new dict; what is missing to 1 is other text."""
        return self._by_option(self.log_shares)

    @property
    def conditional(self) -> dict[Any, float]:
        """The model's own probability of each option, given that it writes one of them, as a new dict; they sum to 1.

        It is what a choice with `exact=True` draws from, and a mask does not. Shares of zero alone have none: NaN for each.
        """
        logs = self.log_conditional
        if logs is None:
            total = reduce(sum_of_logs, self.log_shares, _NONE)
            logs = tuple(log - total for log in self.log_shares)
        return self._by_option(logs)

    @property
    def prior(self) -> dict[Any, float] | None:
        """With `against`, the probability of each option without the content of the prompt, as a new dict; else None."""
        return None if self.log_prior is None else self._by_option(self.log_prior)

    @property
    def best(self) -> Any:
        """The most probable option; the first of equal ones."""
        return max(self, key=self._by_option(self.log_probabilities).__getitem__)

    def _by_option(self, logs: Sequence[float]) -> dict[Any, float]:
        return dict(zip(self.options, map(math.exp, logs), strict=True))


def option_probabilities(
    maker: PieceMaker,
    options: Sequence[str],
    prompt: Any,
    *,
    spellings: Spellings,
    end: bool,
    max_prefixes: int,
    against: Any,
) -> Any:
    """Return `Probabilities` of the options of a choice for each row of a prompt, in the shape of the values of a call.

    `generate.Generator.probabilities` documents arguments, errors and cost.
    """
    _check_options(maker, options)
    check_one_of("spellings", spellings, ("canonical", "all"))
    checked_bool(end, "end")
    check_int("max_prefixes", max_prefixes, 1)
    grid = open_prompt(maker.model, prompt, None, 0).rows
    rows = [row for group in grid for row in group]
    texts = [option.encode() for option in options]
    given: dict[str, Any] = {"spellings": spellings, "end": end, "limit": max_prefixes}
    trees = [[Tree(maker, row, options, texts, **given) for row in group] for group in grid]
    _check_rows(maker, trees)
    whole = _spelled(maker, rows, against, ends=end, limit=max_prefixes)
    walked = [
        tree
        for tree, law in zip([tree for group in trees for tree in group], whole, strict=True)
        if law is None or not law.is_drawn or spellings == "all"
    ]
    traverse(maker, walked)
    found = iter(whole)
    return squeezed([[_result(tree, next(found), tree in walked) for tree in group] for group in trees])


@dataclass(frozen=True, slots=True)
class _Whole:
    """The law of whole options after one row, with what a share has of it."""

    law: OptionLaw
    ends: tuple[float, ...]  # the log-probability of the end of text after each option, 0 where it is not asked for
    is_drawn: bool  # whether the generator draws by this law
    prior: tuple[float, ...] | None


def _spelled(
    maker: PieceMaker, rows: Sequence[StateRow], against: Any, *, ends: bool, limit: int
) -> list[_Whole | None]:
    """Return the law of whole options after each row; None where the tokenizer cannot spell one of them there."""
    choice = cast("ExactChoice", maker.exact)
    trees = [choice.tree(maker.model, row, ends=ends) for row in rows]
    for tree in filter(None, trees):
        if len(tree) > limit:
            raise _too_many(limit, "Use ")
    engine = maker.model.engine
    prior = None if against is None else OptionPrior(choice, maker.model, against)
    known = [tree for tree in trees if tree is not None]
    deque(engine.items(score(maker.model, [*known, *(() if prior is None else prior.trees)])), maxlen=0)
    for tree in known:
        if tree.error is not None:
            raise tree.error
    laws = [OptionLaw(tree, choice.end) for tree in known]
    logs = None if prior is None else prior.logs(laws)
    if prior is not None:
        prior.warn(laws)
    return [None if tree is None else _whole(tree, choice, logs, ends=ends) for tree in trees]


def _whole(tree: SpellingTree, choice: ExactChoice, prior: Sequence[float] | None, *, ends: bool) -> _Whole:
    ended = tuple(tree.end_logprob(i) if ends else 0.0 for i in range(len(tree.spellings)))
    is_drawn = (choice.is_wanted and choice.is_affordable(tree)) or prior is not None
    return _Whole(OptionLaw(tree, choice.end, prior=prior), ended, is_drawn, None if prior is None else tuple(prior))


def _result(tree: Tree, whole: _Whole | None, is_walked: bool) -> Probabilities:
    """Return the probabilities after one row: those of whole options as far as they are drawn by these, else those of the tree."""
    found = tree.result()
    if whole is None:
        return found
    shares = tuple(log + end for log, end in zip(whole.law.log_shares, whole.ends, strict=True))
    return replace(
        found,
        log_probabilities=tuple(whole.law.log_probabilities) if whole.is_drawn else found.log_probabilities,
        log_shares=found.log_shares if is_walked else shares,
        log_conditional=tuple(whole.law.conditional),
        log_prior=whole.prior,
    )


@dataclass(slots=True)
class Prefix:
    """A prefix of spellings of some options, as tokens after a row."""

    tree: Tree
    row: StateRow  # the row with the tokens of the nearest prefix that was fed
    pending: tuple[int, ...]  # the tokens since
    token_ids: tuple[int, ...]
    text: bytes
    state: int  # of the token FSM
    options: list[int]  # those whose text begins with this one
    constrained: float  # the log-probability under the constraint that is not yet at an option
    own: float = _NONE  # that of the model, where its spelling may count
    forced: tuple[int, ...] = ()  # what the constraint appends next


class Tree:
    """The options after one row, as texts, and the log-probabilities that have reached them."""

    def __init__(
        self,
        maker: PieceMaker,
        row: StateRow,
        options: Sequence[Any],
        texts: Sequence[bytes],
        *,
        spellings: Spellings,
        end: bool,
        limit: int,
        state: int | None = None,
    ) -> None:
        """Begin after a row, in a state of the token FSM, its initial one for None."""
        self.source = row
        self.options = options
        self.is_canonical = spellings == "canonical"
        self.end = end
        self.texts = texts
        tokenizer = self._tokenizer = maker.model.tokenizer
        self.canonical = (
            [tuple(encode_bytes_inside(tokenizer, text, row.token_ids)) for text in texts] if row.token_ids else []
        )
        self.constrained = [_NONE] * len(options)
        self.own = [_NONE] * len(options)
        self.num_left = limit
        self._limit = limit
        self._constraint = _token_constraint(maker)
        self._state = self._constraint.token_fsm.initial_state if state is None else state
        self._eos = sorted(maker.model.eos_token_ids)

    def root(self) -> Prefix:
        """Return the prefix of no token."""
        every = [*range(len(self.options))]
        return self._settled(Prefix(self, self.source, (), (), b"", self._state, every, 0.0, 0.0))

    def is_fed(self, prefix: Prefix) -> bool:
        """Return whether the logits after a prefix are needed."""
        return prefix.own > _NONE or (prefix.constrained > _NONE and not prefix.forced)

    def tail(self, prefix: Prefix) -> tuple[int, ...]:
        """Return the tokens to feed together with a prefix: the rest of the only spelling that counts, where nothing else is needed."""
        is_alone = self.is_canonical and prefix.constrained == _NONE and prefix.row.logits is None
        counted = self._counted(prefix) if is_alone else []
        if len(counted) != 1:
            return ()
        rest = self.canonical[counted[0]][len(prefix.token_ids) :]
        return rest if self.end else rest[:-1]

    def add_tail(self, prefix: Prefix, logits: Sequence[torch.Tensor]) -> None:
        """Add the log-probability of the only spelling that counts; `logits` are those after the prefix and each token of its tail."""
        (option,) = self._counted(prefix)
        rest = self.canonical[option][len(prefix.token_ids) :]
        logs = [one.double().log_softmax(0) for one in logits]
        total = prefix.own + sum(float(one[token_id]) for one, token_id in zip(logs, rest, strict=False))
        if self.end:
            total += float(logs[-1][self._eos].logsumexp(0))
        self._add(self.own, self.texts[option], [option], total)

    def children(self, prefix: Prefix, logits: torch.Tensor | None) -> list[Prefix]:
        """Return the longer prefixes that a log-probability flows to; add what ends at an option.

        `logits` are the (V,) after the prefix; None for one that is not fed.
        """
        constrained = dict.fromkeys(prefix.forced[:1], prefix.constrained)
        own: dict[int, float] = {}
        if logits is not None:
            logits = logits.double()
            allowed = [*map(int, self._constraint.token_fsm.allowed_token_ids(prefix.state))]
            if prefix.constrained > _NONE and not prefix.forced:
                constrained = self._constrained(prefix, logits, allowed)
            if prefix.own > _NONE:
                own = self._own(prefix, logits, allowed)
        below = (
            self._child(prefix, token_id, constrained.get(token_id, _NONE), own.get(token_id, _NONE))
            for token_id in dict.fromkeys((*constrained, *own))
        )
        return [child for child in below if child.options]

    def result(self) -> Probabilities:
        """Return the sums."""
        return Probabilities(tuple(self.options), tuple(self.constrained), tuple(self.own))

    def _constrained(self, prefix: Prefix, logits: torch.Tensor, allowed: list[int]) -> dict[int, float]:
        """Return the constrained log-probability of each next token, and add those of the ends."""
        inside = [token_id for token_id in allowed if token_id not in self._eos]
        ends = self._ends(prefix.state, allowed)
        parts = [logits[inside], *(logits[token_ids].logsumexp(0, keepdim=True) for _, token_ids in ends)]
        total = torch.cat(parts).logsumexp(0)
        if not total.isfinite():
            raise DeadEnd(
                f"expected a token of positive probability that the options allow after {prefix.text.decode(errors='replace')!r}, got "
                "probability zero for each. The model itself masks tokens that the options need: use others, or another model."
            )
        for (text, _), log in zip(ends, parts[1:], strict=True):
            self._add(self.constrained, prefix.text + text, prefix.options, float(log - total) + prefix.constrained)
        return dict(zip(inside, (parts[0] - total + prefix.constrained).tolist(), strict=True))

    def _ends(self, state: int, allowed: list[int]) -> list[tuple[bytes, list[int]]]:
        """Return the ways in which the text may end in a state: the bytes that are still written, and the tokens, of whose sum it is."""
        exits = self._constraint.exits(state)
        if exits is not None:
            return [(way.text, way.token_ids.tolist()) for way in exits.all()]
        ends = [token_id for token_id in self._eos if token_id in allowed]
        return [(b"", ends)] if ends else []

    def _own(self, prefix: Prefix, logits: torch.Tensor, allowed: list[int]) -> dict[int, float]:
        """Return the model's own log-probability of each next token of a spelling that counts, and add that of the end."""
        logs = logits.log_softmax(0) + prefix.own
        if self.end:
            ended = float(logs[self._eos].logsumexp(0))
            self._add(self.own, prefix.text, self._counted(prefix), ended)
        wanted = [token_id for token_id in allowed if token_id not in self._eos]
        if self.is_canonical:
            depth = len(prefix.token_ids)
            following = {self.canonical[option][depth : depth + 1] for option in self._counted(prefix)}
            wanted = [ids[0] for ids in sorted(following) if ids]
        return dict(zip(wanted, logs[wanted].tolist(), strict=True))

    def _child(self, prefix: Prefix, token_id: int, constrained: float, own: float) -> Prefix:
        text = prefix.text + (self._tokenizer.token_bytes[token_id] or b"")
        return self._settled(
            Prefix(
                self,
                prefix.row,
                (*prefix.pending, token_id),
                (*prefix.token_ids, token_id),
                text,
                self._constraint.token_fsm.next_state(prefix.state, token_id),
                self._possible(prefix.options, text),
                constrained,
                own,
                prefix.forced[1:] if token_id in prefix.forced[:1] else (),
            )
        )

    def _possible(self, options: Sequence[int], text: bytes) -> list[int]:
        """Return the options that a text may become."""
        return [option for option in options if self.texts[option].startswith(text)]

    def _is_decided(self, options: Sequence[int]) -> bool:
        """Return whether only one option is possible."""
        return len(options) == 1

    def _settled(self, prefix: Prefix) -> Prefix:
        """Return a prefix without the log-probabilities that are already at an option, and with the tokens that are forced next."""
        if prefix.constrained > _NONE and prefix.options and self._is_decided(prefix.options):
            self._add(self.constrained, self.texts[prefix.options[0]], prefix.options[:1], prefix.constrained)
            prefix.constrained, prefix.forced = _NONE, ()
        if prefix.constrained > _NONE and not prefix.forced:
            prefix.forced = tuple(self._constraint.forced_after(prefix.state, prefix.row.token_ids + prefix.pending))
        if prefix.own > _NONE:
            counted = self._counted(prefix)
            if not self.end:
                self._add(self.own, prefix.text, counted, prefix.own)
            if not self.end and all(self.texts[option] == prefix.text for option in counted):
                prefix.own = _NONE
        return prefix

    def _counted(self, prefix: Prefix) -> list[int]:
        """Return the options of a prefix of which it begins a spelling that counts."""
        if not self.is_canonical:
            return prefix.options
        depth, ids = len(prefix.token_ids), prefix.token_ids
        return [option for option in prefix.options if self.canonical[option][:depth] == ids]

    def _add(self, sums: list[float], text: bytes, options: Sequence[int], log: float) -> None:
        """Add a log-probability to that of the option whose text is `text`, if it is among `options`."""
        for option in options:
            if self.texts[option] == text:
                sums[option] = sum_of_logs(sums[option], log)

    def count(self, num_prefixes: int) -> None:
        """Count prefixes that are fed; raise `OptionError` if there are more than the limit."""
        self.num_left -= num_prefixes
        if self.num_left < 0:
            raise _too_many(self._limit, "Use " if self.is_canonical else "Use `spellings='canonical'`, or ")


def _too_many(limit: int, advice: str) -> OptionError:
    return OptionError(
        f"expected options with at most {limit:,} prefixes of spellings that need logits, as `max_prefixes`, got more. {advice}fewer or "
        "shorter options, or raise `max_prefixes`.",
        "max_prefixes",
    )


def traverse(maker: PieceMaker, trees: Sequence[Tree]) -> None:
    """Sum the log-probabilities of all trees, depth by depth."""
    level = [tree.root() for tree in trees]
    while level:
        fed = [prefix for prefix in level if prefix.tree.is_fed(prefix)]
        below = [
            child for prefix in level if not prefix.tree.is_fed(prefix) for child in prefix.tree.children(prefix, None)
        ]
        for part in _parts([(prefix, prefix.tree.tail(prefix)) for prefix in fed]):
            below += _fed(maker, part)
        level = below


_Part = list[tuple[Prefix, tuple[int, ...]]]


def _parts(fed: _Part) -> Iterator[_Part]:
    """Yield prefixes and their tails in parts whose logits are not too many, and count them."""
    part: _Part = []
    size = 0
    for prefix, tail in fed:
        num_logits = 1 + len(tail)
        prefix.tree.count(num_logits)
        if part and size + num_logits > _LOGITS_AT_ONCE:
            yield part
            part, size = [], 0
        part.append((prefix, tail))
        size += num_logits
    if part:
        yield part


def _fed(maker: PieceMaker, part: _Part) -> list[Prefix]:
    """Feed prefixes with their tails in one forward, and return the prefixes below them."""
    rows = [prefix.row.append(prefix.pending + tail, reset=False) for prefix, tail in part]
    filled = maker.model.prefilled_before(rows, [len(tail) for _, tail in part])
    below: list[Prefix] = []
    for (prefix, tail), (row, found) in zip(part, filled, strict=True):
        logits = [found[index] for index in sorted(found)] or [row.logits]
        _check_logits(maker, row, logits)
        prefix.row, prefix.pending = replace(row, logits=None), ()
        if tail:
            prefix.tree.add_tail(prefix, logits)
        else:
            below += prefix.tree.children(prefix, logits[-1])
    return below


def _check_logits(maker: PieceMaker, row: StateRow, logits: Sequence[torch.Tensor]) -> None:
    if not all(bool(one.logsumexp(0).isfinite()) for one in logits):
        raise invalid_logits(shortened(repr(row.text(maker.model.tokenizer))))


def sum_of_logs(first: float, second: float) -> float:
    """Return log(exp(first) + exp(second))."""
    high, low = max(first, second), min(first, second)
    return high if low == _NONE else high + math.log1p(math.exp(low - high))


def _token_constraint(maker: PieceMaker) -> Constraint:
    found = maker.constraint
    return found.constraint if isinstance(found, CheckedConstraint) else cast("Constraint", found)


def _check_options(maker: PieceMaker, options: Sequence[str]) -> None:
    if "" in options:
        raise OptionError(
            "expected options of one character or more, for their probabilities, got ''. Name the case by a text, such as 'none'.",
            "options",
        )
    option, count = Counter(options).most_common(1)[0]
    if count > 1:
        raise OptionError(
            f"expected options that differ, for their probabilities, got {shortened(repr(option))} {count} times. "
            "Pass each once: `list(dict.fromkeys(options))`.",
            "options",
        )
    if maker.thinking is not None:
        raise OptionError(
            "expected a generator without `thinking`, whose options follow the prompt, for their probabilities. Let the model think by "
            "another generator, and pass its state.",
            "thinking",
        )
    if maker.steering:
        raise OptionError(
            "expected a generator without `policies`, got one with some: they change what it draws, and no probability tells how. "
            "Make another without them for probabilities.",
            "policies",
        )


def _check_rows(maker: PieceMaker, trees: Sequence[Sequence[Tree]]) -> None:
    """Raise the error of the first row that cannot be fed with its options."""
    for batch, group in enumerate(trees):
        for sample, tree in enumerate(group):
            row = tree.source
            error = row.error or _too_long(maker, row, tree)
            if error is not None:
                raise located(error, batch, sample) if len(trees) * len(group) > 1 else error


def _too_long(maker: PieceMaker, row: StateRow, tree: Tree) -> ContextLengthError | None:
    longest = max(tree.canonical, key=len, default=())
    try:
        check_length(maker.model, (*row.token_ids, *longest[:-1]), "prompt and option")
    except ContextLengthError as error:
        return error
    return None
