"""The inspector shows an image as a small picture in its place."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

from PIL import Image

from outlines_cont import SequenceState, continuous, generate
from tests.image_models import image_model, picture


def tokens_of(state: SequenceState, path: Path) -> list[list[object]]:
    state.inspect(path)
    page = path.read_text(encoding="utf-8")
    assert "img-src data:;" in page
    (data,) = re.findall(r'<script[^>]* id="data"[^>]*>(.*?)</script>', page, re.DOTALL)
    rows = json.loads(data)["rows"]
    return [token for row in rows for token in row["tokens"]]


def test_an_image_is_a_small_picture_in_its_place(tmp_path: Path) -> None:
    model = image_model("llava")
    state = continuous(generate.text(model))(model.see("A <image> </script>", [picture(1, (200, 100))]), max_tokens=2)
    shown = [token for token in tokens_of(state, tmp_path / "a.html") if "picture" in token[5]]  # type: ignore[operator]
    assert [token[1] for token in shown] == ["<image>"]
    url = shown[0][5]["picture"]  # type: ignore[index, call-overload]
    head, _, data = url.partition(",")
    assert head == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (48, 96)
    unkept = model.see("A <image>", [picture(2)], keep_pixels=False)
    assert not any("picture" in token[5] for token in tokens_of(unkept, tmp_path / "b.html"))  # type: ignore[operator]
