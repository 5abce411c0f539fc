"""Every Redis key and channel of SpecPilot. No other module spells them out.

| key                                    | type   | holds                             | written by         |
|----------------------------------------|--------|-----------------------------------|--------------------|
| `{specpilot}:policies`                 | hash   | model -> VersionedPolicy          | admin API          |
| `{specpilot}:deleted_policies`         | hash   | model -> version to go on from    | admin API          |
| `{specpilot}:policy_versions:<model>`  | hash   | version -> PolicyVersion          | admin API, leader  |
| `{specpilot}:schedules`                | hash   | model and pool -> Schedule        | leading controller |
| `{specpilot}:canaries`                 | hash   | model -> Experiment               | admin API, leader  |
| `{specpilot}:engines`                  | set    | engine ids                        | engine adapter     |
| `{specpilot}:engine:<id>`              | string | EngineRecord; expires when silent | engine adapter     |
| `{specpilot}:questions:<model> <pool>` | hash   | question id -> Question; expires  | controllers        |
| `{specpilot}:answer:<question> <id>`   | string | Answer of an engine; expires      | engine adapter     |
| `specpilot:decisions:{<model> <pool>}` | stream | Decision, except lasting ones     | leading controller |
| `specpilot:history:{<model> <pool>}`   | stream | Decision, the lasting ones        | leading controller |
| `{specpilot}:day_gains:<model> <pool>` | hash   | day -> DailyGain                  | leading controller |
| `{specpilot}:api_keys`                 | hash   | key id -> ApiKey                  | admin API          |
| `{specpilot}:model_routes`             | string | VersionedModelRoutes              | admin API          |
| `{specpilot}:admin_tokens`             | hash   | token id -> AdminToken            | admin API          |
| `{specpilot}:freezes`                  | hash   | model, or `*` -> Freeze           | admin API          |
| `{specpilot}:audit`                    | stream | AuditEntry, done writes           | admin API, leader  |
| `{specpilot}:audit_refused`            | stream | AuditEntry, refused writes        | admin API          |
| `{specpilot}:audit_number`             | string | number of the latest AuditEntry   | admin API, leader  |
| `{specpilot}:gateways`                 | set    | gateway ids                       | gateways           |
| `{specpilot}:gateway:<id>`             | string | GatewayUsage; expires when silent | gateways           |
| `{specpilot}:lease`                    | string | `<fence>:<holder>` of the leader  | controllers        |
| `{specpilot}:fence`                    | string | counter of leaderships            | controllers        |
| `{specpilot}:rights`                   | string | nothing; to try rights, for 1 s   | every program      |

Every write of policies, model routes, engines and API keys is announced on `CHANGES`, with the key's name as the
message, for gateways. A controller reads everything in each tick. A schedule and a question are announced on their
pool's own channel (`pool_changes`), so that only the engines of the pool receive them.

In a cluster the part in braces, the hash tag, determines the server of a key. Keys of one command, script or
transaction have the tag `specpilot`. The streams of decisions, which hold nearly all of the bytes, are spread by pool.
"""

PREFIX = "{specpilot}:"
POLICIES = PREFIX + "policies"
DELETED_POLICIES = PREFIX + "deleted_policies"
SCHEDULES = PREFIX + "schedules"
CANARIES = PREFIX + "canaries"
ENGINES = PREFIX + "engines"
API_KEYS = PREFIX + "api_keys"
MODEL_ROUTES = PREFIX + "model_routes"
ADMIN_TOKENS = PREFIX + "admin_tokens"
FREEZES = PREFIX + "freezes"
AUDIT = PREFIX + "audit"
AUDIT_REFUSED = PREFIX + "audit_refused"
AUDIT_NUMBER = PREFIX + "audit_number"
GATEWAYS = PREFIX + "gateways"
LEASE = PREFIX + "lease"
FENCE = PREFIX + "fence"
RIGHTS = PREFIX + "rights"
CHANGES = PREFIX + "changes"
# These numbers of decisions are kept at 1.8 kB each, compressed. With many classes a decision is larger and fewer are
# kept, bounded by the bytes: 18.5 MB together, so a pool takes 20 MB at most.
DECISIONS_KEPT = 4000
HISTORY_KEPT = 6000
DECISIONS_BYTES = 6_400_000  # Redis takes up to 1.26 times as much
HISTORY_BYTES = 9_400_000
DECISIONS_EXPIRE_S = 14 * 24 * 3600
QUESTIONS_EXPIRE_MS = 5000  # several times as long as a controller waits for answers
GAINS_EXPIRE_S = 31 * 24 * 3600


def policy_versions(model: str) -> str:
    """The versions of one model's policy."""
    return f"{PREFIX}policy_versions:{model}"


def schedule_field(model: str, pool: str) -> str:
    """The field of `SCHEDULES` for one pool of one model."""
    return f"{model} {pool}"


def pool_changes(model: str, pool: str) -> str:
    """The channel on which a pool's schedules, and questions to its engines, are announced."""
    return f"{CHANGES}:{model} {pool}"


def gains(model: str, pool: str) -> str:
    """The gains of adaptive K in one pool of one model, by day."""
    return f"{PREFIX}day_gains:{schedule_field(model, pool)}"


def decisions(model: str, pool: str) -> str:
    """The stream of decisions of one pool of one model."""
    return f"specpilot:decisions:{{{schedule_field(model, pool)}}}"


def history(model: str, pool: str) -> str:
    """The stream of its lasting decisions, which are kept longer."""
    return f"specpilot:history:{{{schedule_field(model, pool)}}}"


def engine(engine_id: str) -> str:
    """The record of one engine."""
    return f"{PREFIX}engine:{engine_id}"


def questions(model: str, pool: str) -> str:
    """The questions to the engines of one pool of one model."""
    return f"{PREFIX}questions:{schedule_field(model, pool)}"


def answer(question_id: str, engine_id: str) -> str:
    """The answer of one engine to one question."""
    return f"{PREFIX}answer:{question_id} {engine_id}"


def gateway(gateway_id: str) -> str:
    """The usage that one gateway reports."""
    return f"{PREFIX}gateway:{gateway_id}"
