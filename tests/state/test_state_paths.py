"""Where the page of a state cannot be written, an error says so; and a slice of one character is shown as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from outlines_cont import continuous, generate, models
from outlines_cont.errors import OptionError
from outlines_cont.pipelines import Calibration, SetupError


@pytest.mark.parametrize("path", ["/proc/x", "/dev/null/x", "/no/such/folder/x", "x" * 5_000, "/"])
def test_a_page_that_cannot_be_written_is_an_error_of_the_path(path: str) -> None:
    state = continuous(generate.regex(models.tiny(), "a"))("Due: ")
    with pytest.raises(OptionError, match="expected a path where a file can be written, got '") as caught:
        state.inspect(path)
    assert caught.value.option == "path"
    assert len(str(caught.value)) < 400
    with pytest.raises(SetupError, match="expected a path where a file can be written"):
        Calibration({}).save(path)


def test_a_page_replaces_the_file(tmp_path: Path) -> None:
    state = continuous(generate.regex(models.tiny(), "a"))("Due: ")
    for _ in range(2):
        state.inspect(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!")


def test_a_slice_of_one_character_is_shown_as_one() -> None:
    state = continuous(generate.regex(models.tiny(), "[a-z]{3}"))(["x ", "y ", "z ", "w "], max_tokens=3)
    assert state.shape[:2] == (4, 1)
    assert "1 x 1 rows of one character, 'y', " in repr(state[1, 0])
    assert "2 x 1 rows of one character, 'x', 'y', " in repr(state[:2, 0])
    assert "character" not in repr(state) + repr(state[1, :]) + repr(state[1, :2])
