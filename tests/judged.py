"""For laws that say nothing of many examples: how often something was judged, and a floor for it.

A law with `if` before its assertion may never come to it, as where a schema accepts none of the texts. `judged()` counts, and
`@at_least(40)` above `@settings` and `@given` fails where all examples together were judged less often.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.examples import examples

_counts: list[int] = []


def judged() -> None:
    """Count one judgement of the law that runs."""
    _counts[-1] += 1


def at_least(floor: int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Make a test of a law that takes no fixtures: the law holds, and was judged at least `floor` times; under `ci` a third as often."""
    least = min(floor, examples(floor))

    def decorate(law: Callable[[], None]) -> Callable[[], None]:
        def test() -> None:
            _counts.append(0)
            try:
                law()
                count = _counts[-1]
            finally:
                _counts.pop()
            assert count >= least, f"the law was judged {count} times only"

        test.__name__, test.__qualname__, test.__doc__ = law.__name__, law.__name__, law.__doc__
        test.__module__ = law.__module__
        return test

    return decorate
