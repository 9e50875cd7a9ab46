"""What the live page asks the server for, by plain HTTP: chains, other choices at a token, what is not fed again, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outlines_cont import Chat, StreamEvent, continuous, generate, models, policies
from outlines_cont.serve.limits import ServerLimits
from outlines_cont.serve.live import _MAX_STATES, LiveRuns, _Shown
from tests.fakes import tiny
from tests.inspector.test_page import PROMPT, SCHEMA
from tests.serve.running import Running

ORDER: dict[str, Any] = {"kind": "json", "source": json.dumps(SCHEMA)}
CHAIN = [ORDER, {"kind": "write", "source": "\nKind: "}, {"kind": "choice", "source": "order\nquestion"}]


@pytest.fixture(scope="module")
def model() -> Any:
    return models.tiny(dtype="float64")


@pytest.fixture(scope="module")
def server(model: Any) -> Iterator[Running]:
    with Running(model) as running:
        yield running


class Page:
    """The tokens of a row as the page keeps them, by the messages of one request."""

    def __init__(self, reply: httpx.Response, tokens: list[Any]) -> None:
        assert reply.status_code == 200, reply.text
        self.messages = [json.loads(line.removeprefix("data: ")) for line in reply.text.strip().split("\n\n")]
        self.tokens, self.error, self.facts = tokens, None, dict[str, Any]()
        for news in self.messages:
            if isinstance(news.get("error"), dict):
                self.error = news["error"]
                continue
            assert news["first"] <= len(self.tokens)
            self.tokens = self.tokens[: news["first"]] + news["tokens"]
            self.facts |= news

    @property
    def ids(self) -> list[int]:
        return [token[0] for token in self.tokens]

    @property
    def text(self) -> str:
        return "".join(token[1] for token in self.tokens)


def run(server: Running, tokens: list[Any] | None = None, **body: Any) -> Page:
    kept = tokens or []
    given = {} if tokens is None else {"ids": [token[0] for token in kept]}
    return Page(server.post("/inspect/run", {**given, **body}), kept)


@pytest.fixture(scope="module")
def first(server: Running) -> Page:
    return run(server, prompt=PROMPT, steps=CHAIN)


def test_a_chain_is_that_of_python(model: Any, first: Page) -> None:
    order = continuous(generate.json(model, SCHEMA))(PROMPT)
    kind = continuous(generate.choice(model, ["order", "question"]))(order.append("\nKind: "))
    assert first.ids == list(kind._flat[0].token_ids)
    assert first.text == str(kind)
    assert [token[2] for token in first.tokens] == [*kind._flat[0].kinds.decode()]
    start, stop = order._flat[0].piece.start, len(order._flat[0].token_ids)  # type: ignore[union-attr]
    assert first.facts["pieces"] == [
        {"start": start, "stop": stop, "step": 0},
        {"start": len(first.ids) - 1, "stop": len(first.ids), "step": 2},
    ]
    assert all("top" in token[5] for token in first.tokens[1:])
    assert all("allowed" in token[5] for token in first.tokens[start:stop])


def test_a_chat_is_that_of_python(server: Running, model: Any) -> None:
    found = run(server, prompt="Rain?", is_chat=True, steps=[{"kind": "text", "max_tokens": 5}])
    chat = Chat(model).user("Rain?").assistant(generate.text(model), max_tokens=5)
    assert list(chat.state._flat[0].token_ids)[: len(found.ids)] == found.ids
    assert len(found.ids) > 5


def test_stops_and_bans_are_those_of_python_and_what_bans_take_back_is_told(server: Running, model: Any) -> None:
    hello = "Message: Hello"
    word = str(continuous(generate.text(model))(hello, max_tokens=4))[len(hello) :].split()[-1]
    state = continuous(generate.text(model))(hello, max_tokens=30, stop_at=["zz", "."], policies=[policies.ban([word])])
    step = {"kind": "text", "max_tokens": 30, "stops": ["zz", "."], "bans": [word]}
    found = run(server, prompt=hello, steps=[step])
    assert found.ids == list(state._flat[0].token_ids)
    assert not {word, "."} & {*found.text[len(hello) :].split()}
    retried = [token[5] for token in found.tokens if token[5].get("retries")]
    assert any(word.startswith(text.strip()) for more in retried for text in more["refused"])
    assert any("taken" in token[5] for token in found.tokens)
    start = found.facts["pieces"][0]["start"]
    again = run(server, found.tokens[: start + 2], state=found.facts["state"], start=start, steps=[step])
    assert again.ids == found.ids


def test_tokens_come_as_they_are_written(first: Page) -> None:
    assert len(first.messages) > 5
    assert [len(news["tokens"]) for news in first.messages[:3]] != [len(first.tokens)] * 3


def test_going_on_with_the_token_that_is_there_changes_nothing(server: Running) -> None:
    first = run(server, prompt=PROMPT, steps=CHAIN)  # of the last 64, whatever ran before
    piece = first.facts["pieces"][0]
    for index in [*range(piece["start"], piece["stop"], 4), piece["stop"] - 1]:
        given = {"state": first.facts["state"], "start": piece["start"], "token": first.ids[index], "steps": CHAIN}
        again = run(server, first.tokens[:index], **given)
        assert again.ids == first.ids
        assert again.tokens[:index] == first.tokens[:index]
        # The last token before the choice is fed for the logits that score it.
        assert again.facts["reused"] == index - 1


def test_a_step_that_is_rewritten_from_a_token_has_the_budget_of_the_whole(server: Running) -> None:
    steps = [{"kind": "text", "max_tokens": 6, "temperature": 0}]
    prompt = "Message: Hi, Oskar Bella here. We need 3 office chairs in Porto Bella before 2030-01-02.\nRecord: "
    whole = run(server, prompt=prompt, steps=steps)
    (piece,) = whole.facts["pieces"]
    assert piece["stop"] - piece["start"] == 6
    for index in range(piece["start"], piece["stop"]):
        given = {"state": whole.facts["state"], "start": piece["start"], "token": whole.ids[index], "steps": steps}
        again = run(server, whole.tokens[:index], **given)
        assert (again.error, again.ids) == (None, whole.ids)
        other = run(server, whole.tokens[:index], **given | {"token": 70})
        assert (other.error, other.ids[: index + 1]) == (None, [*whole.ids[:index], 70])
        assert len(other.ids) <= len(whole.ids)
    again = run(server, whole.tokens[: piece["start"] + 2], state=whole.facts["state"], start=piece["start"], steps=steps)
    assert again.ids == whole.ids


def test_another_choice_goes_on_under_the_constraint(server: Running, model: Any, first: Page) -> None:
    piece, tried = first.facts["pieces"][0], 0
    for index in range(piece["start"], piece["stop"]):
        others = [one for one in first.tokens[index][5]["inside"] if one[0] not in (first.ids[index], *model.eos_token_ids)]
        for token_id, text, _ in others[: 1 + index % 2]:
            given = {"state": first.facts["state"], "start": piece["start"], "token": token_id, "steps": CHAIN}
            other = run(server, first.tokens[:index], **given)
            assert other.error is None
            assert other.ids[: index + 1] == [*first.ids[:index], token_id]
            assert other.tokens[index][1] == text
            assert [i for i, token in enumerate(other.tokens) if "chosen" in token[5]] == [index]
            stop = other.facts["pieces"][0]["stop"]
            jsonschema.validate(json.loads("".join(token[1] for token in other.tokens[piece["start"] : stop])), SCHEMA)
            plain = model.hugging_face(torch.tensor([other.ids])).logits[0].detach().log_softmax(-1)
            scored = [(i, token[3]) for i, token in enumerate(other.tokens) if token[3] is not None]
            assert [value for _, value in scored] == pytest.approx([float(plain[i - 1, other.ids[i]]) for i, _ in scored], abs=2e-5)
            tried += 1
    assert tried > 8


def test_a_state_that_is_not_kept_is_made_of_its_tokens(server: Running) -> None:
    first = run(server, prompt=PROMPT, steps=CHAIN)  # of the last 64, whatever ran before
    piece = first.facts["pieces"][0]
    index = piece["start"] + 3
    given = {"start": piece["start"], "token": first.tokens[index][5]["inside"][1][0], "steps": CHAIN}
    known = run(server, first.tokens[:index], state=first.facts["state"], **given)
    for state in (None, "another", known.facts["state"]):  # the last has other tokens
        other = run(server, first.tokens[:index], state=state, **given)
        assert other.ids == known.ids
    assert known.facts["reused"] == index - 1


def test_the_chosen_end_of_a_span_leads_to_the_next_step(server: Running, model: Any) -> None:
    digits = run(server, prompt="Due: ", steps=[{"kind": "regex", "source": "[0-9]+"}, {"kind": "write", "source": "."}])
    start = digits.facts["pieces"][0]["start"]
    given = {"state": digits.facts["state"], "start": start, "token": min(model.eos_token_ids)}
    ended = run(
        server, digits.tokens[: start + 1], steps=[{"kind": "regex", "source": "[0-9]+"}, {"kind": "write", "source": "."}], **given
    )
    assert not any("chosen" in token[5] for token in ended.tokens)
    assert ended.text == "".join(token[1] for token in digits.tokens[: start + 1]) + "."


def test_a_prompt_is_cut_and_goes_on(server: Running) -> None:
    first = run(server, prompt=PROMPT, steps=CHAIN)  # of the last 64, whatever ran before
    other = run(server, first.tokens[:10], state=first.facts["state"], token=first.ids[3], steps=[{"kind": "text", "max_tokens": 3}])
    assert other.ids[:11] == [*first.ids[:10], first.ids[3]]
    assert other.facts["reused"] == 10
    assert "".join(token[2] for token in other.tokens) == "p" * 10 + "a" + "g" * (len(other.tokens) - 11)


def test_what_checks_take_back_is_told(server: Running) -> None:
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"type": "array", "prefixItems": [digit], "items": digit, "uniqueItems": True, "minItems": 5, "maxItems": 5}
    taken: list[str] = []
    for _ in range(30):  # three of ten have none
        one = run(server, prompt="Numbers: ", steps=[{"kind": "json", "source": json.dumps(schema), "temperature": 2}])
        if one.error is None:
            assert len(set(json.loads(one.text.removeprefix("Numbers: ")))) == 5
        taken += [token[5]["taken"] for token in one.tokens if "taken" in token[5]]
        if taken:
            break
    assert taken
    assert all(taken)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"prompt": "x", "steps": [{"kind": "regex", "source": "("}]}, 400, "steps/0/source"),
        ({"prompt": "x", "steps": [{"kind": "text"}, {"kind": "json", "source": "{"}]}, 400, "steps/1/source"),
        ({"prompt": "x", "steps": [{"kind": "text", "max_tokens": 0}]}, 400, "steps/0/max_tokens"),
        ({"prompt": "x", "steps": [], "odd": 1}, 400, "odd"),
        ({"prompt": "x"}, 400, "steps"),
        ({"prompt": "x", "steps": [{"kind": "text", "stops": "a"}]}, 400, "steps/0/stops"),
    ],
)
def test_a_wrong_request_is_refused_by_its_field(server: Running, body: Any, status: int, param: str) -> None:
    reply = server.post("/inspect/run", body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (status, param)


def test_a_choice_that_the_constraint_forbids_is_an_error(server: Running, model: Any, first: Page) -> None:
    piece = first.facts["pieces"][0]
    (odd,) = model.tokenizer.encode_inside("q", ())
    other = run(server, first.tokens[: piece["start"]], state=first.facts["state"], start=piece["start"], token=odd, steps=CHAIN)
    assert other.error["code"] == "resume_error"  # type: ignore[index]
    for wrong in ({"token": 10**6}, {"ids": [10**6]}):
        body = {"steps": CHAIN[:1], "ids": first.ids[:3], **wrong}
        assert Page(server.post("/inspect/run", body), first.tokens[:3]).error is not None


def test_the_page_is_open_and_what_it_asks_for_needs_the_key(model: Any) -> None:
    with Running(model, key="secret", max_requests=0) as running:
        shown = httpx.get(f"{running.url}/")
        assert shown.status_code == 200
        assert '"has_key":true' in shown.text
        assert "secret" not in shown.text
        assert shown.headers["content-security-policy"] == "frame-ancestors 'none'"
        assert httpx.post(f"{running.url}/inspect/run", json={"prompt": "x", "steps": []}).status_code == 401
        assert running.post("/inspect/run", {"prompt": "x", "steps": []}).status_code == 429


def test_a_page_that_is_closed_frees_its_row(server: Running) -> None:
    body = {"prompt": "Due: ", "steps": [{"kind": "regex", "source": "[0-9]{1900}", "max_tokens": 1900}]}
    with httpx.stream("POST", f"{server.url}/inspect/run", json=body) as reply:
        chunks = reply.iter_bytes()
        next(chunks)
        server.wait_until(lambda: server.num_running == 1)
    server.wait_until(lambda: server.num_running == 0)


def test_states_are_kept_within_some_bytes(model: Any) -> None:
    states = [continuous(generate.text(model))(f"Due: {i}", max_tokens=4) for i in range(4)]
    runs = LiveRuns(model, ServerLimits(), 2 * states[0].nbytes)
    keys = [runs._kept(state) for state in states]
    assert [*runs._states] == keys[2:]
    none = LiveRuns(model, ServerLimits(), 0)
    none._kept(states[0])
    assert not none._states


def test_few_states_are_kept(server: Running) -> None:
    begun = run(server, prompt="Due: ", steps=[{"kind": "text", "max_tokens": 1}])
    for _ in range(_MAX_STATES):
        run(server, begun.tokens[:1], state=begun.facts["state"], steps=[])
    assert run(server, begun.tokens[:2], state=begun.facts["state"], steps=[]).ids == begun.ids[:2]


# -- events as changes of the page -------------------------------------------------------------------------------------

IDS = st.lists(st.integers(0, 3), max_size=4)


@given(IDS, IDS, st.lists(st.tuples(st.integers(0, 4), IDS), max_size=6))
def test_the_page_has_the_tokens_of_the_events(front: list[int], behind: list[int], events: list[tuple[int, list[int]]]) -> None:
    """Also where the events tell tokens once more that the page has: those behind `front`, where the span began."""
    tokenizer = tiny().tokenizer
    shown, page, span = _Shown([*front, *behind], len(front)), [*front, *behind], list[int]()
    for retract, ids in events:
        retract = min(retract, len(span))
        span = span[: len(span) - retract] + ids
        event = StreamEvent(batch=0, sample=0, retract_tokens=retract, token_ids=tuple(ids), logprobs=(0.0,) * len(ids))
        news = shown.changed(event, tokenizer)
        if news is not None:
            assert shown.low <= news["first"] <= len(page)
            page = page[: news["first"]] + [token[0] for token in news["tokens"]]
            assert page == [*front, *span]
        else:
            assert page == [*front, *span]
