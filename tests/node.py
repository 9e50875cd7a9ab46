"""`Node`: the regular expressions of an installed Node.js, in one process that answers line by line; `missing`: why there is none."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from typing import Any

UNICODE = "17.0"
"""The version of Unicode of our tables; another one has other properties."""

_PROGRAM = r"""
require('readline').createInterface({input: process.stdin}).on('line', (line) => {
  const [pattern, flags, texts] = JSON.parse(line)
  let answer
  try {
    const found = new RegExp(pattern, flags)
    answer = texts.map((text) => {
      const match = found.exec(text)
      if (match === null) return false
      return /[\ud800-\udbff]/.test(text[match.index - 1]) && /[\udc00-\udfff]/.test(text[match.index]) ? null : true
    })
  } catch (error) {
    answer = error.message
  }
  console.log(JSON.stringify(answer))
})
"""


@cache
def missing() -> str:
    """Why patterns cannot be compared with those of Node.js on this machine; empty where they can."""
    if shutil.which("node") is None:
        return "Node.js is not installed"
    said = subprocess.run(["node", "-p", "process.versions.unicode"], capture_output=True, text=True, timeout=60)
    version = said.stdout.strip()
    return "" if version == UNICODE else f"Node.js has Unicode {version}, and our tables {UNICODE}"


class Node:
    """One process; a context manager that ends it."""

    def __enter__(self) -> Node:
        command = ["node", "-e", _PROGRAM]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def found(self, pattern: str, flags: str, texts: Sequence[str]) -> list[bool | None] | str:
        """Whether a pattern is found in each text, or the message where it is no pattern.

        None: it is found between the two code units of a character, where by ECMA-262 no search with `u` begins (a fault of V8).
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([pattern, flags, list(texts)]) + "\n")
        self._process.stdin.flush()
        answer: Any = json.loads(self._process.stdout.readline())
        return answer  # type: ignore[no-any-return]
