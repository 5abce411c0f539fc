"""The admin API against its own OpenAPI page: whatever is sent, the page describes every reply."""

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from specpilot.policy.access import Role
from specpilot.policy.model_policy import Mode
from specpilot.policy.records import Decision, EngineRecord
from specpilot.policy.schedule import Guidance, Schedule
from specpilot.policy.store import Store
from tests.support.controller_program import TOKEN, Controller
from tests.support.patience import PATIENCE_S

EXAMPLES = 16
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def fill(controller: Controller) -> None:
    """Leave something to be read of everything that can be."""
    store = Store(controller.redis.url, PATIENCE_S)
    schedule = Schedule("seen", "default", 1, 1.0, Guidance())
    engine = EngineRecord("e", "http://127.0.0.1:1", "seen", "default", 7, 3, 8, "eagle3", "0.32", "0.1", 1.0, 1.0)
    store.heartbeat(engine, 60.0)
    store.append_decision(
        Decision(1.0, "seen", "default", Mode.ACT, "first_schedule", True, 1, schedule, {"decodes": 3}),
        is_lasting=True,
    )
    assert controller.call("/admin/policies/seen", "PUT", {"classes": {"code": {"k_max": 3}}})[0] == 201
    assert controller.call("/admin/policies/seen", "PUT", {})[0] == 428
    assert controller.call("/admin/policies/seen", "PATCH", {"k_min": 1})[0] == 200
    assert controller.call("/admin/keys", "POST", {"traffic_class": "code"})[0] == 201
    assert controller.call("/admin/model-routes", "PATCH", {"routes": {"a": {"fallback": ["seen"]}}})[0] == 201
    assert controller.call("/admin/freezes/seen", "PUT", {"hold": "static"})[0] == 200


def tokens(controller: Controller) -> dict[str, str]:
    """A token for each role, none, and one that is not known."""
    made = {
        role.value: controller.call("/admin/tokens", "POST", {"name": role, "role": role})[1]["token"] for role in Role
    }
    return {**made, "first": TOKEN, "unknown": "no"}


def generated(examples: int) -> settings:
    """So many documents, the same in each run."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.timeout(600)  # some 20 s on a quiet core
def test_every_reply_is_one_that_the_page_tells_of(controller: Controller) -> None:
    fill(controller)
    bearer = tokens(controller)
    page = schemathesis.openapi.from_url(f"{controller.url}/openapi.json")
    operations = [found.ok() for found in page.get_all_operations()]
    assert len(operations) > 32
    statuses: set[int] = set()
    written: set[str] = set()
    for operation in operations:

        @generated(EXAMPLES)
        @given(
            case=operation.as_strategy(),
            is_seen=st.booleans(),
            who=st.sampled_from(["first", "first", "admin", "operator", "viewer", "unknown"]),
        )
        def check(case: schemathesis.Case, is_seen: bool, who: str) -> None:
            if is_seen:
                for values in (case.path_parameters, case.query):
                    if values and "model" in values:
                        values["model"] = "seen"
            response = case.call(base_url=controller.url, headers={"Authorization": f"Bearer {bearer[who]}"})
            case.validate_response(response, checks=CHECKS)
            statuses.add(response.status_code)
            if case.method != "GET" and response.status_code < 400:
                written.add(who)

        check()
    assert statuses >= {200, 201, 204, 401, 403, 404, 412, 422}
    assert "operator" in written
    assert not {"viewer", "unknown"} & written


@pytest.mark.parametrize(
    ("path", "method", "headers", "status"),
    [
        ("/admin/policies/seen", "PUT", {"If_Match": "9" * 5000}, 412),
        ("/admin/policies/seen", "PUT", {"If_None_Match": "x"}, 400),
        ("/admin/policies/%00%ff%F0%9F%99%82", "GET", {}, 404),
        ("/admin/decisions?model=%00&before=inf", "GET", {}, 422),
        ("/admin/decisions?model=%00&before=9e10", "GET", {}, 404),
        ("/admin/decisions?model=seen&before=nan", "GET", {}, 422),
        ("/admin/explain?model=seen&at=1e300", "GET", {}, 422),
        ("/admin/policies/seen", "POST", {}, 405),
        ("/admin/engines", "POST", {}, 405),
        ("/admin/nothing", "GET", {}, 404),
        ("/admin/decisions", "GET", {}, 422),
        ("/admin/decisions?model=seen&limit=0", "GET", {}, 422),
        ("/admin/explain?model=m", "GET", {}, 404),
        ("/admin/policies/seen/versions/0", "GET", {}, 422),
        ("/admin/policies/seen/versions/9007199254740993", "GET", {}, 422),
        ("/admin/policies/%00%F0%9F%99%82/versions", "GET", {}, 200),
        ("/admin/policies/seen/diff?from=-1&to=1", "GET", {}, 422),
        ("/admin/audit?after=-1", "GET", {}, 422),
        ("/admin/audit?after=9&before=3", "GET", {}, 200),
        ("/admin/policies/seen?comment=" + "x" * 501, "PATCH", {}, 422),
        ("/admin/policies/seen?validate_only=maybe", "PATCH", {}, 422),
        ("/admin/freezes/%00", "PUT", {}, 422),
    ],
)
def test_odd_values_are_refused_or_served(
    controller: Controller, path: str, method: str, headers: dict[str, str], status: int
) -> None:
    found, body, _ = controller.call(path, method, {} if method != "GET" else None, **headers)
    assert found == status
    assert status < 400 or set(body["error"]) >= {"message", "type", "param", "code"}
