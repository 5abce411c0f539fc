from typing import Any

import pytest
from pydantic import ValidationError

from specpilot.gateway.settings import GatewaySettings


def read(**settings: Any) -> GatewaySettings:
    return GatewaySettings(**settings)


def test_engines_can_be_given_in_many_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REDIS_URL", raising=False)
    found = read(engine=("http://a:1/", "http://b:2/v1,http://c:3/base/v1/", "http://a:1"))
    assert found.engine == ("http://a:1", "http://b:2", "http://c:3/base")
    monkeypatch.setenv("SPECPILOT_GATEWAY_ENGINE", "http://d:4, http://e:5")
    assert read().engine == ("http://d:4", "http://e:5")


def test_engines_can_be_all_addresses_of_a_name() -> None:
    found = read(engine="dns+http://vllm.models.svc:8000/v1, dns+https://b")
    assert found.engine == ("dns+http://vllm.models.svc:8000", "dns+https://b")
    for wrong in ("dns://b:1", "dns+redis://b", "dns+http://", "dns+http://b:1?x=1", "dns+http://b:0"):
        with pytest.raises(ValidationError) as caught:
            read(engine=wrong)
        assert "dns+http://" in str(caught.value)


def test_a_password_in_an_engines_url_is_refused_and_not_repeated() -> None:
    for url in ("http://user:hush@a:1", "dns+https://hush@b"):
        with pytest.raises(ValidationError) as caught:
            read(engine=url)
        assert "leave them out" in caught.value.errors()[0]["msg"]
        assert "hush" not in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"engine": "http://"}, "http://127.0.0.1:8100"),
        ({"engine": "http://x:99999"}, "http://127.0.0.1:8100"),
        ({"redis_url": "http://x"}, "redis://"),
        ({"max_body_bytes": 1}, "greater than"),
        ({"engine_capacity": 0}, "greater than"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read(**{"engine": "http://x", **settings})
    [fault] = caught.value.errors()
    assert fault["loc"] == (*settings,)
    assert said in fault["msg"]


def test_redis_comes_from_its_usual_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://r:6379/0")
    assert read().redis_url == "redis://r:6379/0"


def test_a_password_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "http://user:hush@r")
    with pytest.raises(ValidationError) as caught:
        read()
    assert "hush" not in caught.value.errors()[0]["msg"]
