"""Requests that ask for much: what is too large is refused before it is read, no other waits for masks, what is kept is bounded."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

import fsm
from fsm.terms import work
from outlines_cont import models
from outlines_cont.device import TRIM_FROM_BYTES, Trimmer
from outlines_cont.generate import Generator
from outlines_cont.policies import slow_work
from outlines_cont.policies.constraint import KeptConstraints
from outlines_cont.serve import served_model
from outlines_cont.serve.limits import CacheShares, ServerLimits
from tests.serve.running import Running, wait_until

_SAID: Any = {"role": "user", "content": "a"}
_TAG: Any = {"begin": "<a>", "schema": True, "end": "</a>"}


def _tool(number: int) -> Any:
    return {"type": "function", "function": {"name": f"t{number}"}}


_TEXT, _CHAT, _ITEMS = "/v1/completions", "/v1/chat/completions", "/v1/responses"
TOO_LARGE: list[tuple[str, dict[str, Any], str, str]] = [
    (_TEXT, {"ban": ["a"] * 9}, "ban", "--max-phrases"),
    (_TEXT, {"ban": ["ab" * 40]}, "ban", "--max-phrase-characters"),
    (_ITEMS, {"input": "a", "ban": ["a"] * 9}, "ban", "--max-phrases"),
    (_TEXT, {"stop": ["a"] * 9}, "stop", "--max-phrases"),
    (_CHAT, {"stop": "ab" * 40}, "stop", "--max-phrase-characters"),
    (_TEXT, {"logit_bias": {str(i): 1 for i in range(5_000)}}, "logit_bias", "ids, as many as the model has"),
    (_TEXT, {"prompt": "a" * 101}, "prompt", "--max-prompt-characters"),
    (_TEXT, {"prompt": ["a", "a" * 101]}, "prompt", "--max-prompt-characters"),
    (_TEXT, {"guidance": {"negative_prompt": "a" * 101, "scale": 2}}, "guidance/negative_prompt", "--max-prompt-characters"),
    (_CHAT, {"messages": [{"role": "user", "content": "a" * 60}] * 2}, "messages", "--max-prompt-characters"),
    (_CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 60}] * 2}]}, "messages", "--max-prompt-characters"),
    (_ITEMS, {"input": "a" * 101}, "input", "--max-prompt-characters"),
    (_ITEMS, {"input": "a", "instructions": "a" * 101}, "input", "--max-prompt-characters"),
    (_CHAT, {"messages": [_SAID] * 6}, "messages", "--max-messages"),
    (_ITEMS, {"input": [_SAID] * 6}, "input", "--max-messages"),
    (_CHAT, {"tools": [_tool(i) for i in range(4)]}, "tools", "--max-tools"),
    (_ITEMS, {"input": "a", "tools": [{"type": "function", "name": f"t{i}"} for i in range(4)]}, "tools", "--max-tools"),
    (_TEXT, {"structured_outputs": {"structural_tag": {"structures": [_TAG] * 4, "triggers": ["<a"]}}}, "structured_outputs/structural_tag",
     "--max-tools"),
    ("/inspect/run", {"prompt": "a" * 101, "steps": []}, "prompt", "--max-prompt-characters"),
    ("/inspect/run", {"prompt": "a", "steps": [{"kind": "text", "bans": ["a"] * 9}]}, "steps/0/bans", "--max-phrases"),
]  # fmt: skip


def test_what_is_too_large_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked(*arguments: Any) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(served_model, "asked_chat", asked)
    monkeypatch.setattr(served_model, "asked_completion", asked)
    monkeypatch.setattr(served_model.Constraints, "generator", asked)
    monkeypatch.setattr(served_model.Constraints, "tools", asked)
    limits = {"max_phrases": 8, "max_phrase_characters": 64, "max_prompt_characters": 100, "max_messages": 5, "max_tools": 3}
    bases: dict[str, Any] = {_TEXT: {"prompt": "a"}, _CHAT: {"messages": [_SAID]}, _ITEMS: {}, "/inspect/run": None}
    with Running(models.tiny(), **limits) as served:
        for path, fields, param, said in TOO_LARGE:
            base = {} if bases[path] is None else {"model": "tiny", **bases[path]}
            reply = served.post(path, base | fields)
            assert reply.status_code == 400, (fields, reply.text)
            error = reply.json()["error"]
            assert (error["param"], error["code"], said in error["message"]) == (param, "too_large", True), error


def test_others_get_their_tokens_while_the_mask_of_a_request_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    bitmask, arrived, is_waiting, was_late = fsm.TokenFSM.bitmask, [0], threading.Event(), threading.Event()

    def slow(token_fsm: fsm.TokenFSM, state: int) -> Any:
        if "[n-z]{2,4}" in repr(token_fsm.expression) and token_fsm._make_key(state) not in token_fsm.vocabulary.masks:
            work.add(slow_work.MAX_STEP_WORK + 1)
            work.check()  # inside of a step
            is_waiting.set()
            goal = arrived[0] + 20
            wait_until(lambda: arrived[0] >= goal)
            was_late.set()
        return bitmask(token_fsm, state)

    monkeypatch.setattr(fsm.TokenFSM, "bitmask", slow)
    with Running(models.tiny()) as served:
        url = f"{served.url}{_TEXT}"
        body: Any = {"model": "tiny", "prompt": "a", "max_tokens": 1_000}
        heavy: list[httpx.Response] = []

        def ask() -> None:
            heavy.append(served.post(_TEXT, body | {"structured_outputs": {"regex": "[n-z]{2,4}"}, "seed": 1}))

        asking = threading.Thread(target=ask)
        asking.start()
        assert is_waiting.wait(60)
        while asking.is_alive():
            victim = body | {"stream": True, "structured_outputs": {"regex": "[a-m]{2000}"}}
            with httpx.stream("POST", url, json=victim, timeout=60) as stream:
                for line in stream.iter_lines():
                    arrived[0] += line.startswith("data: {")
                    if not asking.is_alive():
                        break
        asking.join()
    assert was_late.is_set()
    assert set(heavy[0].json()["choices"][0]["text"]) <= set("nopqrstuvwxyz")


def _values(number: int) -> Any:
    return {"choice": [f"v{number}x{i}" for i in range(3_000)]}


def test_kept_constraints_are_bounded_in_bytes() -> None:
    model = models.tiny()
    with Running(model, cache_bytes=16 << 20) as served:
        kept = KeptConstraints.of(model)
        for number in range(20):
            reply = served.post(_TEXT, {"model": "tiny", "prompt": "a", "max_tokens": 2, "structured_outputs": _values(number)})
            assert reply.status_code == 200
        shares = CacheShares.of(ServerLimits(cache_bytes=16 << 20), 0)
        assert kept.max_bytes == shares.constraints // 2
        assert kept.nbytes <= kept.max_bytes
        assert 1 < len(kept) < 20
        found = app_of(served).models.first.constraints._found
        assert 1 < len(found) < 20
        assert all(isinstance(one.done.result(), Generator) for one in found.values())
        assert model.prefix_cache.max_bytes == shares.prefixes


def app_of(served: Running) -> Any:
    """Return the `Server` of a running one."""
    application: Any = served._server.config.app
    return application.state.server


def test_the_shares_of_the_cache_are_at_most_all_of_it() -> None:
    for limits, prefixes in ((ServerLimits(cache_bytes=800), 7), (ServerLimits(), 400), (ServerLimits(), 0)):
        shares = CacheShares.of(limits, prefixes)
        total = limits.cache_bytes or 2 * prefixes or 1 << 30
        assert shares.prefixes == (400 if prefixes else 0)
        assert shares.prefixes + shares.states + shares.constraints + shares.masks <= total
        assert shares.states == shares.constraints == shares.masks == total // 8


def test_memory_is_given_back_after_much_was_let_go() -> None:
    trimmed = threading.Semaphore(0)
    trimmer = Trimmer(lambda pad: trimmed.release())
    for _ in range(4):
        trimmer.let_go(TRIM_FROM_BYTES // 4 - 1)
    assert not trimmed.acquire(timeout=0.3)
    trimmer.let_go(4)
    assert trimmed.acquire(timeout=30)
    assert Trimmer(None)._trim is None or callable(Trimmer(None)._trim)
