"""The OpenAPI schema of the server: requests that schemathesis makes of it have the replies that it describes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outlines_cont import models
from tests.serve.hostile import spoiled
from tests.serve.running import Running

schemathesis = pytest.importorskip("schemathesis")
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]


PATHS = ["/health", "/metrics", "/v1/models", "/v1/models/{model_id}", "/v1/chat/completions", "/v1/completions", "/v1/responses"]
PATHS += ["/v1/messages", "/v1/messages/count_tokens"]


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with Running(models.tiny(), max_tokens=3) as running:
        yield running


@pytest.fixture(scope="module")
def api(served: Running) -> Any:
    return schemathesis.openapi.from_url(f"{served.url}/openapi.json")


def _operation(api: Any, path: str) -> Any:
    return next(operation for result in api.get_all_operations() if (operation := result.ok()).path == path)


@pytest.mark.parametrize(("path", "mode"), [*((path, "positive") for path in PATHS), *((path, "negative") for path in PATHS[4:])])
def test_replies_are_those_of_the_schema(api: Any, path: str, mode: str) -> None:
    @given(case=_operation(api, path).as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    def check(case: Any) -> None:
        if mode == "positive" and isinstance(case.body, dict):
            case.body["model"] = "tiny"  # as a wrong one is all that would be seen
        # Relations between fields are in no schema.
        case.call_and_validate(excluded_checks=[schemathesis.specs.openapi.checks.positive_data_acceptance])

    check()


@pytest.mark.parametrize("path", PATHS[4:])
def test_a_hostile_value_in_a_request_of_the_schema_is_no_error_of_the_server(served: Running, api: Any, path: str) -> None:
    @given(
        case=_operation(api, path).as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE),
        rng=st.integers(0, 2**32).map(random.Random),
    )
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    def check(case: Any, rng: random.Random) -> None:
        if isinstance(case.body, dict):
            text = spoiled({**case.body, "model": "tiny"}, list(case.body), rng)
            found = served.send(path, text)
            assert found.status_code < 500, (found.text, text[:2_000])

    check()


def test_every_path_is_tried(api: Any) -> None:
    paths = {result.ok().path for result in api.get_all_operations()}
    assert paths - set(PATHS) == {"/inspect/run"}  # which the page of the server asks for
