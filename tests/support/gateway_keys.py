"""Calls with an API key, and the class that they get."""

from tests.support.gateway_client import call, request
from tests.support.gateway_server import GatewayThread


def key_headers(key: str, traffic_class: str | None = None) -> str:
    return f"authorization: Bearer {key}\r\n" + (f"x-traffic-class: {traffic_class}\r\n" if traffic_class else "")


async def class_of(gateway: GatewayThread, headers: str = "", body: dict[str, object] | None = None) -> str:
    answer = await call(gateway.port, request({"model": "tiny", **(body or {})}, headers=headers))
    assert answer.status == 200, answer.body
    return answer.headers["x-specpilot-class"]
