"""Writes of the admin API that somebody else's write overtakes, over the shared state in memory and without a loop."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from typing_extensions import override

from specpilot.controller.admin import problems
from specpilot.controller.admin.access import Access
from specpilot.controller.admin.audited import AuditTrail
from specpilot.controller.admin.routes import routes
from specpilot.policy.api_key import ApiKey
from specpilot.policy.canary import Canary, Experiment
from specpilot.policy.history import Change
from specpilot.policy.model_policy import Policy, VersionedPolicy
from specpilot.policy.records import Lease
from tests.support.controller_store import MemoryStore
from tests.support.loop_rig import Clock

KEY = ApiKey("k", "0" * 64, expires_at=None)
RUNS = Experiment(3, "first", Canary(Policy("m", static_k=5)), 0, 1.0)


@dataclass
class OvertakenStore(MemoryStore):
    """Before the next compare-and-set somebody else writes: `overtake` does it, once."""

    overtake: Callable[[], None] | None = None

    def _be_overtaken(self) -> None:
        if self.overtake is not None:
            write, self.overtake = self.overtake, None
            write()

    @override
    def change_api_key(self, before: ApiKey, after: ApiKey) -> bool:
        self._be_overtaken()
        return super().change_api_key(before, after)

    @override
    def put_canary(self, experiment: Experiment, lease: Lease | None, now: float, change: Change | None = None) -> None:
        self._be_overtaken()
        super().put_canary(experiment, lease, now, change)


@pytest.fixture
def store() -> OvertakenStore:
    return OvertakenStore(keys={"k": KEY}, tried={"m": RUNS})


@pytest.fixture
def api(store: OvertakenStore) -> Iterator[TestClient]:
    app, clock = FastAPI(), Clock()
    problems.install(app)
    access, trail = Access(store, clock, "t"), AuditTrail(store, clock)  # type: ignore[arg-type]
    app.include_router(routes(store, access, clock, trail, on_change=lambda: None))  # type: ignore[arg-type]
    with TestClient(app, headers={"Authorization": "Bearer t"}) as found:
        yield found


def test_a_rotation_undoes_no_change_of_that_moment(api: TestClient, store: OvertakenStore) -> None:
    changed = replace(KEY, expires_at=9e9, k_max=3)
    store.overtake = lambda: store.put_api_key(changed)
    answer = api.post("/admin/keys/k/rotate", json={"grace_s": 60})
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "key_changed")
    assert store.keys["k"] == changed
    assert api.post("/admin/keys/k/rotate", json={"grace_s": 60}).json()["expires_at"] == 9e9
    assert store.keys["k"].previous_sha256 == KEY.sha256


def test_a_change_of_single_fields_goes_on_top_of_a_change_of_that_moment(
    api: TestClient, store: OvertakenStore
) -> None:
    store.overtake = lambda: store.put_api_key(replace(KEY, k_max=3))
    assert api.patch("/admin/keys/k", json={"requests_per_minute": 6}).status_code == 200
    assert store.keys["k"] == replace(KEY, k_max=3, requests_per_minute=6)


def test_a_block_that_is_counted_meanwhile_does_not_keep_a_canary_alive(api: TestClient, store: OvertakenStore) -> None:
    store.overtake = lambda: store.tried.update(m=replace(RUNS, version=4))
    answer = api.delete("/admin/canaries/m", headers={"If-Match": '"first"'})
    assert (answer.status_code, answer.json()["outcome"], store.tried["m"].version) == (200, "aborted", 5)


def test_a_canary_that_begins_at_that_moment_is_not_ended(api: TestClient, store: OvertakenStore) -> None:
    second = replace(RUNS, version=5, experiment_id="second")
    store.overtake = lambda: store.tried.update(m=second)
    answer = api.delete("/admin/canaries/m")
    assert (answer.status_code, answer.json()["error"]["code"]) == (412, "version_conflict")
    assert "the canary second of 'm' runs now" in answer.json()["error"]["message"]
    assert store.tried["m"] == second


@pytest.mark.parametrize("query", ["", "?validate_only=true"])
def test_a_promotion_over_another_policy_is_refused_dry_or_not(
    api: TestClient, store: OvertakenStore, query: str
) -> None:
    store.stored["m"] = VersionedPolicy(1, 1.0, Policy("m", static_k=2))
    answer = api.post("/admin/canary-promotions/m" + query)
    assert (answer.status_code, answer.json()["error"]["code"]) == (412, "version_conflict")
    assert answer.json()["error"]["message"].startswith("the policy of m is at version 1, not 0")
    assert api.delete("/admin/canaries/m?validate_only=true").status_code == 200
