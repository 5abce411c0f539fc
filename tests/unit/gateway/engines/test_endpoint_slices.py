"""What slices say of engines: conditions, ports, address families, pods in two slices."""

from typing import Any

import pytest

from specpilot.gateway.engines.endpoint_slices import Endpoints, Service, endpoints, service_of
from tests.support.kubernetes_api import endpoint, endpoint_slice

SERVICE = service_of("k8s+http://vllm:8000")


@pytest.mark.parametrize(
    ("url", "service"),
    [
        ("k8s+http://vllm:8000", Service("http", "vllm", None, 8000, "")),
        ("k8s+https://vllm.models/base", Service("https", "vllm", "models", None, "/base")),
        ("k8s+http://vllm.models.svc.cluster.local:80", Service("http", "vllm", "models", 80, "")),
    ],
)
def test_a_url_names_a_service(url: str, service: Service) -> None:
    assert service_of(url) == service


@pytest.mark.parametrize(
    ("conditions", "urls", "draining"),
    [
        ({"ready": True}, 1, 0),
        ({}, 1, 0),  # unset means ready
        ({"ready": None, "terminating": None}, 1, 0),
        ({"ready": False}, 0, 0),
        ({"ready": False, "serving": True, "terminating": True}, 1, 1),
        ({"ready": False, "serving": False, "terminating": True}, 1, 1),
        ({"ready": True, "terminating": True}, 1, 1),  # of a service that publishes what is not ready
    ],
)
def test_conditions(conditions: dict[str, Any], urls: int, draining: int) -> None:
    found = endpoints(SERVICE, [endpoint_slice("a", [{"addresses": ["10.0.0.1"], "conditions": conditions}])])
    assert (len(found.urls), len(found.draining)) == (urls, draining)


def test_the_port_is_the_one_that_is_asked_for_or_the_only_one() -> None:
    two = endpoint_slice("a", [endpoint("10.0.0.1")], ports=(8000, 9000))
    one = endpoint_slice("b", [endpoint("10.0.0.2")], ports=(9000,))
    assert endpoints(SERVICE, [two, one]).urls == ("http://10.0.0.1:8000",)
    assert endpoints(service_of("k8s+https://vllm/v"), [two, one]).urls == ("https://10.0.0.2:9000/v",)


def test_of_two_families_one_counts() -> None:
    four = endpoint_slice("a", [endpoint("10.0.0.1")])
    six = endpoint_slice("b", [endpoint("fd00::1")], family="IPv6")
    names = endpoint_slice("c", [endpoint("vllm.example")], family="FQDN")
    assert endpoints(SERVICE, [six, four, names]).urls == ("http://10.0.0.1:8000",)
    assert endpoints(SERVICE, [six]).urls == ("http://[fd00::1]:8000",)
    assert endpoints(SERVICE, [names]) == Endpoints()


def test_a_pod_in_two_slices_is_one_engine_by_the_better_of_its_conditions() -> None:
    stale = endpoint_slice("a", [endpoint("10.0.0.1", ready=False, terminating=True)])
    fresh = endpoint_slice("b", [endpoint("10.0.0.1")])
    assert endpoints(SERVICE, [stale, fresh]) == Endpoints(("http://10.0.0.1:8000",))


@pytest.mark.parametrize(
    "part", [{}, {"addressType": "IPv4"}, {"addressType": "IPv4", "endpoints": None, "ports": None}]
)
def test_what_a_slice_leaves_out_is_nothing(part: dict[str, Any]) -> None:
    assert endpoints(SERVICE, [part, endpoint_slice("a", [{"addresses": []}])]) == Endpoints()
