"""Every Redis key and channel of SpecPilot. Nothing else in the code spells one.

| key                                  | type   | holds                             | written by         |
|--------------------------------------|--------|-----------------------------------|--------------------|
| `specpilot:policies`                 | hash   | model -> VersionedPolicy          | admin API          |
| `specpilot:deleted_policies`         | hash   | model -> version to go on from    | admin API          |
| `specpilot:schedules`                | hash   | model and pool -> Schedule        | leading controller |
| `specpilot:canaries`                 | hash   | model -> Experiment               | admin API, leader  |
| `specpilot:engines`                  | set    | engine ids                        | engine adapter     |
| `specpilot:engine:<id>`              | string | EngineRecord; expires when silent | engine adapter     |
| `specpilot:decisions:<model>:<pool>` | stream | Decision, newest last             | leading controller |
| `specpilot:history:<model>:<pool>`   | stream | Decision, those that are kept on  | leading controller |
| `specpilot:api_keys`                 | hash   | key id -> ApiKey                  | admin API          |
| `specpilot:gateways`                 | set    | gateway ids                       | gateways           |
| `specpilot:gateway:<id>`             | string | GatewayUsage; expires when silent | gateways           |
| `specpilot:lease`                    | string | `<fence>:<holder>` of the leader  | controllers        |
| `specpilot:fence`                    | string | counter of leaderships            | controllers        |

Every write, but for decisions, canaries, gateways and the lease, is announced on `CHANGES`, with the name of the key as
the message.
"""

PREFIX = "specpilot:"
POLICIES = PREFIX + "policies"
DELETED_POLICIES = PREFIX + "deleted_policies"
SCHEDULES = PREFIX + "schedules"
CANARIES = PREFIX + "canaries"
ENGINES = PREFIX + "engines"
API_KEYS = PREFIX + "api_keys"
GATEWAYS = PREFIX + "gateways"
LEASE = PREFIX + "lease"
FENCE = PREFIX + "fence"
CHANGES = PREFIX + "changes"
DECISIONS_KEPT = 5000
HISTORY_KEPT = 10_000
DECISIONS_EXPIRE_S = 14 * 24 * 3600


def schedule_field(model: str, pool: str) -> str:
    """The field of `SCHEDULES` for one pool of one model."""
    return f"{model} {pool}"


def decisions(model: str, pool: str) -> str:
    """The stream of decisions of one pool of one model."""
    return f"{PREFIX}decisions:{model}:{pool}"


def history(model: str, pool: str) -> str:
    """The stream of those of its decisions that are kept longer."""
    return f"{PREFIX}history:{model}:{pool}"


def engine(engine_id: str) -> str:
    """The record of one engine."""
    return f"{PREFIX}engine:{engine_id}"


def gateway(gateway_id: str) -> str:
    """What one gateway says of its usage."""
    return f"{PREFIX}gateway:{gateway_id}"
