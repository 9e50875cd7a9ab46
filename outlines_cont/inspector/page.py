"""`page`: the inspector as one self-contained HTML file: a script, a style sheet and the values that it shows, as JSON.

The values are data: the file allows no script and no style but its own, by their digests (a content security policy), and connects to
nothing, or in a live page to the server that it came from.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

# A script ends at `</script>`, whatever it is in; the line separators end a line for some readers of JSON.
_ESCAPED = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


def page(data: Mapping[str, Any], *, title: str = "State", is_live: bool = False) -> str:
    """Return the page.

    Args:
        data: what `state.inspection.inspection` returns; see there.
        title: that of the window.
        is_live: the page can ask its server to continue states; else it connects to nothing.

    Raises:
        ValueError: a number in `data` is not finite.
    """
    parts = {name: _asset(f"inspector.{name}") for name in ("css", "js")}
    parts["js"] += _asset("live.js") if is_live else ""
    server = "'self'" if is_live else "'none'"
    policy = (
        f"default-src 'none'; style-src {_digest(parts['css'])}; script-src {_digest(parts['js'])}; "
        f"img-src data:; connect-src {server}; base-uri 'none'; form-action 'none'"
    )
    values = {"title": escape(title), "policy": policy, "data": embedded(data), **parts}
    before, *rest = _asset("inspector.html").split("{{")
    return before + "".join(values[name] + after for name, _, after in (part.partition("}}") for part in rest))


def frame(shown: str, text: str) -> str:
    """Return a page as a part of another, such as a notebook; `text` is for those that show no frames of what they do not trust."""
    style = "width:100%;height:18rem;border:1px solid #8884;resize:vertical"
    inside = f'<iframe sandbox="allow-scripts" title="State" style="{style}" srcdoc="{escape(shown)}"></iframe>'
    return f"{inside}<details><summary>Text</summary><pre>{escape(text)}</pre></details>"


def embedded(data: Mapping[str, Any]) -> str:
    """Return values as JSON that may stand inside of a script element, whatever texts are in them."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_ESCAPED)


@cache
def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _digest(source: str) -> str:
    return f"'sha256-{b64encode(sha256(source.encode()).digest()).decode()}'"
