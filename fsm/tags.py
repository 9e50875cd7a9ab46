"""`special`: a special token, such as `<|tool|>`, as a language. `tag`: what stands between two marks. `triggered`: free text in which a
trigger obliges a tag, as models write tool calls between their sentences (a *structural tag*).

Free text before a trigger is a regular language: no trigger is inside it, nor begins in it and ends in the one that follows (a complement
of characters, with the borders of the triggers). So the first trigger of a text is where a tag begins, whatever the tags are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_

from fsm.automaton.lazy_dfa import Automaton
from fsm.errors import ExpressionError, clip, shorten
from fsm.expression import Expression, lift
from fsm.recipe import remembered
from fsm.terms import node as nodes
from fsm.terms import rule as texts
from fsm.terms.special_token import symbol


@remembered
def special(name: str) -> Expression:
    """The special token that a tokenizer writes as `name`, such as `"<|tool|>"`: one symbol, which letters do not spell.

    It has no letters, so that it adds nothing to values, captures and streams; `accepts` and the like read it in a list:
    `["Hi", fsm.special("<|tool|>")]`. `~` and all other languages are of texts, which contain no special token.

    Raises:
        ExpressionError: the name is empty, not text, or contains a lone surrogate.
    """
    if not isinstance(name, str) or not name:
        raise ExpressionError(
            f"expected how a special token is written, such as '<|tool|>', received {shorten(name)}. "
            "`tokenizer.all_special_tokens` lists those of a tokenizer."
        )
    texts.encode(name, "the name of a special token")
    return Expression(nodes.literal(symbol(name)), source=f"special({clip(name)!r})", specials=frozenset((name,)))


@remembered
def tag(begin: Expression | str, content: Expression | str, end: Expression | str) -> Expression:
    """What stands between two marks: `begin`, then `content`, then `end`, as `begin + content + end`."""
    return lift(begin) + content + end


@remembered
def triggered(
    tags: Sequence[Expression],
    triggers: Sequence[Expression | str],
    *,
    at_least_one: bool = False,
    stop_after_first: bool = False,
) -> Expression:
    """Free text in which each trigger begins one of the tags that begin with it; nothing else may follow a trigger.

    Args:
        tags: see `tag`; each begins with a trigger, and each trigger begins a tag.
        triggers: texts, or special tokens.
        at_least_one: whether there is a tag.
        stop_after_first: whether the text ends with the first tag.

    Raises:
        ExpressionError: there are no tags, a tag begins with no trigger, a trigger begins no tag, or one trigger contains another.

    Cost: one state of the free text per byte of the triggers.
    """
    marks = [_mark(trigger) for trigger in _listed(triggers, "triggers")]
    begins = [Automaton(one.node).forced_text(Automaton.initial_state) for one in map(lift, _listed(tags, "tags"))]
    _check(begins, marks, tags)
    texts_alone = [mark.decode() for mark in marks if not mark.startswith(b"\xff")]
    free = _without(texts_alone, "")
    steps = [
        _without(texts_alone, "" if mark.startswith(b"\xff") else mark.decode())
        + reduce(or_, (lift(one) for one, begin in zip(tags, begins, strict=True) if begin.startswith(mark)))
        for mark in marks
    ]
    step = reduce(or_, steps)
    if stop_after_first:
        return step if at_least_one else step | free
    return step.repeat(int(at_least_one)) + free


def _listed(given: object, name: str) -> Iterable[Expression | str]:
    if isinstance(given, str | Expression) or not isinstance(given, Sequence) or not given:
        raise ExpressionError(f"expected a list of {name}, received {shorten(given)}. Give at least one.")
    return given


def _mark(trigger: Expression | str) -> bytes:
    """The one text of a trigger."""
    found = Automaton(lift(trigger).node)
    data = found.forced_text(Automaton.initial_state)
    if not data or found.nodes[found.next_state(Automaton.initial_state, data)] is not nodes.EPSILON:
        raise ExpressionError(
            f"expected a text or a special token as a trigger, received {shorten(trigger)}. List each text by itself."
        )
    return data


def _check(begins: Sequence[bytes], marks: Sequence[bytes], tags: Sequence[Expression]) -> None:
    for one, begin in zip(tags, begins, strict=True):
        if not any(map(begin.startswith, marks)):
            raise ExpressionError(
                f"expected tags that begin with a trigger, received {one!r}, whose texts need not begin with one. Add its beginning to "
                "`triggers`."
            )
    for mark in marks:
        if not any(begin.startswith(mark) for begin in begins):
            raise ExpressionError(
                f"the trigger {_shown(mark)} begins no tag, so that nothing could follow it. Leave it out."
            )
        hidden = next((other for other in marks if other in mark[:-1]), None)
        if hidden is not None or marks.count(mark) > 1:
            raise ExpressionError(
                f"the trigger {_shown(mark)} contains the trigger {_shown(hidden or mark)}, which always comes first. Leave it out."
            )


def _shown(mark: bytes) -> str:
    return repr(mark.strip(b"\xff").decode())


def _without(marks: Sequence[str], before: str) -> Expression:
    """The texts before `before` in which no mark ends, nor inside of it before its own end."""
    everything = Expression(texts.TEXTS, source="<text>")
    found = [everything + mark + everything for mark in marks]
    for mark in marks:
        borders = (size for size in range(1, len(mark)) if before[:-1].startswith(mark[size:]))
        found += [everything + mark[:size] for size in borders]
    return ~reduce(or_, found) if found else everything
