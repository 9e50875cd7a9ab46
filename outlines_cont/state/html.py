"""`state_html`: the rows of a state as HTML for notebooks: each generated token on a background by its probability; forced, cached and
special tokens are marked. At most 16 rows, and the last 600 tokens of each; text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from outlines_cont.interfaces import Tokenizer
from outlines_cont.state.row import FORCED, GENERATED, HEALED, SCORED, StateRow

_MAX_ROWS = 16
_MAX_TOKENS = 600
# Colours with an alpha channel lie on light and on dark pages alike.
_STYLE = (
    "<style>.outlines-cont{font-family:ui-monospace,monospace;white-space:pre-wrap;line-height:1.7}"
    ".outlines-cont .t{border-radius:2px;padding:1px 0}"
    ".outlines-cont .c{border-bottom:2px solid rgba(110,140,255,.75)}"
    ".outlines-cont .f{outline:1px dotted rgba(128,128,128,.9);font-style:italic}"
    ".outlines-cont .s{opacity:.55;font-size:85%}"
    ".outlines-cont .k{opacity:.7;font-size:85%;white-space:normal;font-family:sans-serif}</style>"
)


def state_html(rows: Sequence[Sequence[StateRow]], tokenizer: Tokenizer) -> str:
    """Return the rows as HTML with a legend; no more than 16 rows, and the last 600 tokens of each."""
    flat = [(b, s, row) for b, group in enumerate(rows) for s, row in enumerate(group)]
    parts = [_row(b, s, row, tokenizer, len(flat) > 1) for b, s, row in flat[:_MAX_ROWS]]
    if len(flat) > _MAX_ROWS:
        parts.append(f'<div class="k">and {len(flat) - _MAX_ROWS} more rows</div>')
    levels = (0.01, 0.25, 0.5, 0.75, 1.0)
    scale = "".join(f'<span class="t" style="{_colour(math.log(p))}">{p:.0%}</span> ' for p in levels)
    legend = (
        f'<div class="k">probability of a generated token: {scale}&nbsp; <span class="t f">forced</span> &nbsp; '
        '<span class="t c">cached</span> &nbsp; <span class="s">special</span></div>'
    )
    return f'{_STYLE}<div class="outlines-cont">{legend}{"".join(parts)}</div>'


def _row(b: int, s: int, row: StateRow, tokenizer: Tokenizer, numbered: bool) -> str:
    first = max(len(row.token_ids) - _MAX_TOKENS, 0)
    head = f'<span class="k">[{b}, {s}] </span>' if numbered else ""
    cut = f'<span class="k">({first} tokens before) </span>' if first else ""
    tokens = "".join(_token(row, index, tokenizer) for index in range(first, len(row.token_ids)))
    notes = [f"weight {row.weight:.2f}"] if row.weight else []
    notes += [row.finish_reason] if row.finish_reason else []
    notes += [f"{type(row.error).__name__}: {row.error}"] if row.error is not None else []
    foot = f' <span class="k">{escape(", ".join(notes))}</span>' if notes else ""
    return f"<div>{head}{cut}{tokens}{foot}</div>"


def _token(row: StateRow, index: int, tokenizer: Tokenizer) -> str:
    token_id, kind = row.token_ids[index], row.kinds[index : index + 1]
    data = tokenizer.text_bytes([token_id])
    name = "" if data else tokenizer.special_tokens.get(token_id, f"<{token_id}>")
    text = data.decode(errors="replace") or name
    classes = "t" + " c" * (index < row.cached) + " f" * (kind == FORCED) + " s" * (not data)
    written = kind in SCORED
    logprob = row.logprobs[index]
    title = f"token {token_id}, {data!r}" if data else f"special token {token_id}, {name}"
    title += f", probability {math.exp(logprob):.3g}" if written else ""
    style = f' style="{_colour(logprob)}"' if kind in GENERATED + HEALED else ""
    # A line break is shown, and is one.
    shown = escape(text).replace("\n", '<span class="s">↵</span>\n')
    return f'<span class="{classes}"{style} title="{escape(title, quote=True)}">{shown}</span>'


def _colour(logprob: float) -> str:
    """Return a background from red (unlikely) over yellow to green (certain)."""
    share = math.exp(min(logprob, 0.0)) if math.isfinite(logprob) else 0.0
    return f"background:hsla({round(120 * share)},75%,50%,.32)"
