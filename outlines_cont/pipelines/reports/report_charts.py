"""Charts of a report as inline SVG: histogram, and reliability diagram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 420, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 12, 16, 30
_MOST_COLUMNS = 28


def histogram(counts: Mapping[int, int], unit: str) -> str:
    """Return columns of how often each number occurs; neighbouring numbers share one where there are many."""
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    step = max(-(-(high - low + 1) // _MOST_COLUMNS), 1)
    columns = [0] * ((high - low) // step + 1)
    for number, count in counts.items():
        columns[(number - low) // step] += count
    most = max(columns)
    wide = (_WIDTH - _LEFT - _RIGHT) / len(columns)
    gap = 1.0 if wide > 4 else 0.3
    parts = [_line(_LEFT, _y(0), _WIDTH - _RIGHT, _y(0), "axis")]
    for at, count in enumerate(columns):
        first = low + at * step
        told = f"{first}" if step == 1 else f"{first} to {first + step - 1}"
        top = _y(count / most)
        parts.append(
            f'<rect class="bar" x="{_LEFT + at * wide + gap / 2:.1f}" y="{top:.1f}" width="{max(wide - gap, 0.5):.1f}" '
            f'height="{_y(0) - top:.1f}"><title>{told} {escape(unit)}: {count:,}</title></rect>'
        )
    parts += [_text(_LEFT - 6, _y(1) + 4, f"{most:,}", "end"), _text(_LEFT - 6, _y(0) + 4, "0", "end")]
    parts += [_text(_LEFT, _HEIGHT - 12, f"{low}", "start"), _text(_WIDTH - _RIGHT, _HEIGHT - 12, f"{high}", "end")]
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 12, unit, "middle"))
    return _svg(_WIDTH, _HEIGHT, parts, f"histogram of {unit}")


def reliability(points: Sequence[tuple[float, int, int]], unit: str) -> str:
    """Return a reliability diagram: the share of right values by predicted chance; on the diagonal the prediction is calibrated.

    Args:
        points: (predicted chance, values, right values), the chance from 0 to 1, ascending.
        unit: the name of the predicted chance.
    """
    size, left, top = 220, 44, 12
    most = max((count for _, count, _ in points), default=1)

    def at(said: float, share: float) -> tuple[float, float]:
        return left + said * size, top + (1 - share) * size

    parts = [f'<rect class="frame" x="{left}" y="{top}" width="{size}" height="{size}"/>']
    parts.append(_line(*at(0, 0), *at(1, 1), "diagonal"))
    places = [at(said, right / count) for said, count, right in points if count]
    if len(places) > 1:
        parts.append(f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
    for (x, y), (said, count, right) in zip(places, [point for point in points if point[1]], strict=True):
        radius = 3 + 7 * (count / most) ** 0.5
        parts.append(
            f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"><title>{escape(unit)} {said:.2f}: {right:,} of '
            f"{count:,} right ({right / count:.0%})</title></circle>"
        )
    for number in (0, 0.5, 1):
        x, y = at(number, number)
        parts += [_text(left - 8, y + 4, f"{number:.0%}", "end"), _text(x, top + size + 16, f"{number:.0%}", "middle")]
    parts.append(_text(left + size / 2, top + size + 32, unit, "middle"))
    parts.append(_text(left + 6, top + 14, "right", "start"))
    return _svg(left + size + 24, top + size + 40, parts, f"share of right values by {unit}")


def _y(share: float) -> float:
    return _TOP + (1 - share) * (_HEIGHT - _TOP - _BOTTOM)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="{escape(label, quote=True)}">{"".join(parts)}</svg>'
    )
