"""Schemas of the resources that Kubernetes itself has none of, in the parts that the chart uses.

Written by hand from the public API references of the Gateway API (v1) and of the Prometheus operator (monitoring v1).
What the references have and the chart does not use is left out, so that a field that is not here is looked up before it
is added.
"""

from collections.abc import Mapping
from typing import Any

DURATION = r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"
LABEL_NAME = "^[a-zA-Z_][a-zA-Z0-9_]*$"
DNS_NAME = r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": [*required], "properties": properties}


def _list(items: Mapping[str, Any], most: int = 64) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "maxItems": most, "items": items}


def _resource(api_version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    metadata = _object(("name",), name={"type": "string", "pattern": DNS_NAME}, labels=TEXTS)
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )


TEXT = {"type": "string", "minLength": 1}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
NAMED = {"type": "string", "minLength": 1, "maxLength": 253, "pattern": DNS_NAME}

HTTP_ROUTE = _object(
    ("parentRefs", "rules"),
    parentRefs=_list(_object(("name",), name=NAMED, namespace=NAMED, sectionName=NAMED, port=PORT), most=32),
    hostnames=_list(NAMED, most=16),
    rules=_list(
        _object(
            ("matches", "backendRefs"),
            matches=_list(
                _object(
                    path=_object(
                        ("type", "value"),
                        type={"enum": ["Exact", "PathPrefix", "RegularExpression"]},
                        value={"type": "string", "pattern": "^/", "maxLength": 1024},
                    )
                )
            ),
            backendRefs=_list(_object(("name", "port"), name=NAMED, namespace=NAMED, port=PORT), most=16),
        ),
        most=16,
    ),
)

POD_MONITOR = _object(
    ("selector", "podMetricsEndpoints"),
    selector=_object(("matchLabels",), matchLabels=TEXTS),
    podMetricsEndpoints=_list(
        _object(
            ("port",),
            port={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?$"},  # a name, not a number
            path=TEXT,
            interval={"type": "string", "pattern": DURATION},
            scheme={"enum": ["http", "https"]},
            tlsConfig=_object(insecureSkipVerify={"type": "boolean"}, serverName=TEXT),
            relabelings=_list(
                _object(
                    ("targetLabel",),
                    sourceLabels=_list({"type": "string", "pattern": LABEL_NAME}),
                    targetLabel={"type": "string", "pattern": LABEL_NAME},
                    replacement={"type": "string"},
                    regex={"type": "string"},
                )
            ),
        )
    ),
)

PROMETHEUS_RULE = _object(
    ("groups",),
    groups=_list(
        _object(
            ("name", "rules"),
            name=TEXT,
            interval={"type": "string", "pattern": DURATION},
            rules=_list(
                {
                    **_object(
                        ("expr",),
                        alert=TEXT,
                        record={"type": "string", "pattern": "^[a-zA-Z_:][a-zA-Z0-9_:]*$"},
                        expr={"type": ["string", "integer"]},
                        **{"for": {"type": "string", "pattern": DURATION}},
                        labels=TEXTS,
                        annotations=TEXTS,
                    ),
                    "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
                },
                most=1000,
            ),
        )
    ),
)

SCHEMAS: Mapping[str, Mapping[str, Any]] = {
    "HTTPRoute": _resource("gateway.networking.k8s.io/v1", "HTTPRoute", HTTP_ROUTE),
    "PodMonitor": _resource("monitoring.coreos.com/v1", "PodMonitor", POD_MONITOR),
    "PrometheusRule": _resource("monitoring.coreos.com/v1", "PrometheusRule", PROMETHEUS_RULE),
}
"""The schema of a whole manifest, by its kind."""
