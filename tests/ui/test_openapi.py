"""Whatever a script asks, described or not: no failure of ours, and no read without a login."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from ui.conftest import CONTENT, ERROR, login

# The same requests each time: a CI run that fails is one that can be run again.
_settings = settings(
    max_examples=5, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def test_no_answer_is_a_failure_each_is_as_described_and_none_is_for_strangers(
    server: Any, browser: Any, populated: str
) -> None:
    from fastapi.testclient import TestClient

    anonymous = TestClient(server, raise_server_exceptions=False)
    stranger = login(TestClient(server, raise_server_exceptions=False), "stranger")
    described = schemathesis.openapi.from_dict(browser.get("/parkkeeper/openapi.json").json())
    asked = 0

    def ask(case: Any) -> None:
        nonlocal asked
        address, query = f"/parkkeeper{case.formatted_path}", dict(case.query or {})
        answer = browser.get(address, params=query)
        if answer.status_code == 404 and answer.json() == {"detail": "Not Found"}:
            return  # no address of ours, e.g. a namespace with a slash in it
        assert CONTENT not in answer.text
        assert ERROR not in answer.text
        case.validate_response(
            answer, checks=[not_a_server_error, response_schema_conformance, status_code_conformance]
        )
        assert anonymous.get(address, params=query).status_code == 401
        assert stranger.get(address, params=query).status_code == 403
        asked += answer.status_code == 200

    for found in described.get_all_operations():
        operation = found.ok()
        for mode in GenerationMode:
            if mode == GenerationMode.NEGATIVE and not operation.query:
                continue  # nothing to get wrong

            @_settings
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask_of_a_namespace(case: Any) -> None:
                ask(case)
                if case.path_parameters:
                    case.path_parameters["namespace"] = populated
                    ask(case)

            ask_of_a_namespace()
    assert asked > 50
