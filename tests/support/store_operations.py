"""Every operation of the store, so that a user or a server that one of them does not suit is found."""

from dataclasses import replace
from typing import Any

from specpilot.policy.access import AdminToken, Role
from specpilot.policy.api_key import ApiKey, GatewayUsage
from specpilot.policy.audit import AuditEntry, Result
from specpilot.policy.canary import Canary, Experiment, Outcome
from specpilot.policy.freeze import Freeze, Hold
from specpilot.policy.gain import LogGain
from specpilot.policy.model_policy import Mode, Policy
from specpilot.policy.model_routes import ModelRoute, ModelRoutes, Target
from specpilot.policy.questions import Answer, Question
from specpilot.policy.records import Decision, EngineRecord, Lease
from specpilot.policy.schedule import Guidance, Schedule
from specpilot.policy.store import Store

RECORD = EngineRecord("e1", "http://e1", "tiny", "p", 7, 3, 32, "eagle3", "0.32.0", "0.1.0", 1.0, 2.0)
OPERATIONS = {name for kind in Store.__mro__[:-1] for name in vars(kind) if not name.startswith("_")} - {"close"}


class Watched:
    """A store, and which of its operations were used."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.used.add(name)
        return getattr(self._store, name)


def use_everything(store: Store) -> None:
    """Do every operation that there is, so that a user or a server that one of them does not suit is found."""
    watched = Watched(store)
    watched.ping()
    assert watched.run_id()
    watched.missing_rights()
    assert watched.memory().used_bytes > 0
    lease = watched.acquire_lease("a", 5.0)
    assert lease is not None
    for use in (_use_policies, _use_engines, _use_keys, _use_what_operators_have):
        use(watched, lease)
    assert next(watched.changes(1.0)) is None
    watched.unannounced()
    watched.release_lease(lease)
    assert OPERATIONS - watched.used == set()


def _use_policies(store: Any, lease: Lease) -> None:
    store.put_policy(Policy("m"), None, 1.0)
    store.put_policy(Policy("m", k_max=5), 1, 2.0)
    assert store.policy("m").version == len(store.policy_versions("m", 10)) == 2
    assert store.policy_version("m", 1).policy == Policy("m")
    experiment = Experiment(1, "x", Canary(Policy("m", k_max=3)), 2, 3.0)
    store.put_canary(experiment, None, 3.0)
    ended = replace(experiment, version=2, ended_at=4.0, outcome=Outcome.PROMOTED)
    store.put_canary(ended, lease, 4.0)
    assert store.canary("m") == ended
    assert len(store.canaries()) == len(store.policies()) == len(store.policies_by_model()) == 1
    assert store.policy("m").policy.k_max == 3
    assert store.delete_policy("m", 3, 5.0)


def _use_engines(store: Any, lease: Lease) -> None:
    for _ in range(2):  # registered, and renewed
        store.heartbeat(RECORD, 5.0)
        store.exchange_usage(GatewayUsage("g", {}), 5.0)
    schedule = Schedule("m", "p", 1, 1.0, Guidance())
    store.publish_schedule(schedule, lease)
    assert (store.schedule("m", "p"), len(store.schedules()), len(store.engines())) == (schedule, 1, 1)
    decision = Decision(1.0, "m", "p", Mode.ACT, "adaptive", True, 1, schedule, {})
    for is_lasting in (False, True):
        store.append_decision(decision, is_lasting=is_lasting)
    assert {item.reason for item in store.decisions("m", "p", 10)} == {"adaptive"}
    assert store.decisions("m", "p", 10, 0.5) == []
    assert store.add_gain("m", "p", 86_400.0, LogGain(0.1, 0.2), lease).itl.windows == 1
    assert len(store.daily_gains("m", "p")) == 1
    store.remove_schedule("m", "p", lease)
    question = Question("q", "explain", ("e1", "e2"), Guidance())
    store.put_question("m", "p", question)
    assert store.questions("m", "p") == [question]
    store.put_answer(Answer("q", "e1", unknown="nothing runs"))
    assert store.answers(question) == {"e1": Answer("q", "e1", unknown="nothing runs")}
    store.remove_question("m", "p", "q")
    assert store.questions("m", "p") == []
    store.remove_engine("e1")


def _use_keys(store: Any, _: Lease) -> None:
    key = ApiKey("k", "ab" * 32)
    store.put_api_key(key)
    assert store.change_api_key(key, replace(key, k_max=3))
    assert len(store.api_keys()) == len(store.api_keys_by_id()) == 1
    assert store.delete_api_key("k")


def _use_what_operators_have(store: Any, _: Lease) -> None:
    token = AdminToken("a" * 12, "ada", Role.VIEWER, "ab" * 32, 1.0)
    assert store.put_admin_token(token, None)
    assert store.put_admin_token(replace(token, role=Role.ADMIN), token)
    assert [item.role for item in (*store.admin_tokens(), store.admin_token("a" * 12))] == [Role.ADMIN] * 2
    assert store.delete_admin_token("a" * 12)
    store.put_freeze(Freeze("m", Hold.STATIC, 1.0))
    assert [*store.freezes()] == ["m"]
    assert store.delete_freeze("m")
    routes = store.put_model_routes(ModelRoutes({"chat": ModelRoute((Target("big"),))}), 0, 1.0)
    assert store.model_routes() == routes
    store.put_model_routes(ModelRoutes(), 1, 2.0)
    for result in Result:
        store.append_audit(AuditEntry(1.0, "ada", "put_policy", "m", result))
    assert len(store.audit(10)) == len(store.audit(10, None, 0)) == len(Result)
