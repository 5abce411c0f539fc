"""Tokens of an identity provider: a real issuer over HTTP, with discovery and keys, and a real controller."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from specpilot.controller.admin import oidc
from specpilot.controller.admin.oidc import OidcProvider, OidcRules
from specpilot.controller.admin.problems import ApiError
from specpilot.controller.settings import ControllerSettings
from specpilot.policy.access import Role
from tests.support.controller_program import Controller, running_controller
from tests.support.gateway_server import eventually
from tests.support.issuer import Issuer
from tests.support.loop_rig import Clock
from tests.support.tcp_server import end


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


@pytest.fixture(scope="module")
def controller(issuer: Issuer) -> Iterator[Controller]:
    wanted = ("--oidc-issuer", issuer.url, "--oidc-audience", "specpilot", "--oidc-roles", "sre=operator,boss=admin")
    with running_controller(token=None, arguments=wanted) as found:
        yield found


def test_the_claim_says_the_role_and_the_audit_the_name(controller: Controller, issuer: Issuer) -> None:
    assert controller.call("/admin/whoami", token=issuer.token())[1]["role"] == "operator"
    assert controller.call("/admin/whoami", token=issuer.token(groups=["sre", "boss", 7]))[1]["role"] == "admin"
    assert controller.call("/admin/whoami", token=issuer.token(groups="boss"))[1]["role"] == "admin"
    assert controller.call("/admin/policies/m", "PUT", {}, issuer.token())[0] == 201
    entry = controller.call("/admin/audit?limit=1", token=issuer.token())[1]["entries"][0]
    assert (entry["who"], entry["role"]) == ("ada@example.com", "operator")
    assert controller.call("/admin/keys", "POST", {}, issuer.token())[1]["error"]["code"] == "role_too_low"


def test_this_machine_is_not_trusted_besides(controller: Controller) -> None:
    assert controller.call("/admin/policies", token=None)[0] == 401


@pytest.mark.parametrize(
    ("claims", "status", "code"),
    [
        ({"exp": -600}, 401, "token_expired"),
        ({"aud": "another"}, 401, "invalid_admin_token"),
        ({"iss": "http://another.example"}, 401, "invalid_admin_token"),
        ({"exp": None}, 401, "invalid_admin_token"),
        ({"nbf": 600}, 401, "invalid_admin_token"),
        ({"groups": ["guests"]}, 403, "no_role"),
        ({"groups": None}, 403, "no_role"),
    ],
)
def test_a_token_that_is_not_good_is_refused(
    controller: Controller, issuer: Issuer, claims: dict[str, Any], status: int, code: str
) -> None:
    # Times are offsets from now in seconds: a parameter is made when tests are collected, long before this one runs.
    moments = {name: time.time() + value for name, value in claims.items() if name in ("exp", "nbf") and value}
    found, body, _ = controller.call("/admin/policies", token=issuer.token(**claims | moments))
    assert (found, body.get("error", {}).get("code")) == (status, code)


def test_a_forged_or_unsigned_token_is_refused(controller: Controller, issuer: Issuer) -> None:
    forged = issuer.token(key=rsa.generate_private_key(public_exponent=65537, key_size=2048))
    unsigned = jwt.encode({"iss": issuer.url, "aud": "specpilot", "sub": "u"}, "", algorithm="none")
    shared = jwt.encode({"iss": issuer.url}, "x" * 32, algorithm="HS256", headers={"kid": "first"})
    for token in (forged, unsigned, shared, "a.b.c"):
        assert controller.call("/admin/policies", token=token)[0] == 401


def test_a_token_whose_algorithm_is_not_its_keys_is_refused(controller: Controller, issuer: Issuer) -> None:
    """An RSA key checks no elliptic signature: PyJWT raises a TypeError of it."""
    elliptic = ec.generate_private_key(ec.SECP256R1())
    edwards = ed25519.Ed25519PrivateKey.generate()
    for key, algorithm in ((elliptic, "ES256"), (edwards, "EdDSA")):
        status, body, _ = controller.call("/admin/policies", token=issuer.token(key=key, algorithm=algorithm))
        assert (status, body["error"]["code"]) == (401, "invalid_admin_token")
    assert controller.call("/admin/policies", token=issuer.token(algorithm="PS384"))[0] == 200


def test_the_name_is_one_that_the_provider_vouches_for_and_that_can_be_printed(
    controller: Controller, issuer: Issuer
) -> None:
    def name(**claims: Any) -> str:
        return str(controller.call("/admin/whoami", token=issuer.token(**claims))[1]["name"])

    assert name(email_verified=True) == "ada@example.com"
    assert name(email_verified=False) == name(email_verified="false") == "u1"
    assert name(email_verified=False, preferred_username="ada") == "ada"
    for forged in ("ada\n2026-01-01  done", "a\x1b[2J", "a\u202e"):
        status, body, _ = controller.call("/admin/whoami", token=issuer.token(email=forged))
        assert (status, body["error"]["code"]) == (401, "invalid_admin_token")


def provider_of(url: str, clock: Clock) -> OidcProvider:
    return OidcProvider(OidcRules(url, "specpilot", "groups", {"sre": Role.OPERATOR}), clock)


async def refusal_of(provider: OidcProvider, token: str) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        await provider.caller(token)
    return caught.value.status, caught.value.code


async def test_a_new_key_of_the_issuer_is_found_without_a_restart_but_not_asked_for_all_the_time(
    issuer: Issuer,
) -> None:
    clock = Clock()
    provider = provider_of(issuer.url, clock)
    assert await provider.caller(issuer.token()) is not None
    asked = issuer.asked
    issuer.keys["second"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert await refusal_of(provider, issuer.token("second")) == (401, "invalid_admin_token")
    assert issuer.asked == asked
    clock.at += 31.0
    found = await provider.caller(issuer.token("second"))
    assert found is not None
    assert (found.name, found.role) == ("ada@example.com", Role.OPERATOR)
    assert await provider.caller("no token of such a kind") is None
    assert issuer.asked == asked + 2
    del issuer.keys["second"]
    clock.at += 299.0
    assert await provider.caller(issuer.token()) is not None
    assert issuer.asked == asked + 2
    clock.at += 2.0
    assert await provider.caller(issuer.token()) is not None
    assert issuer.asked == asked + 4


async def test_while_keys_cannot_be_read_again_the_last_ones_are_good_for_an_hour() -> None:
    clock, issuer = Clock(), Issuer()
    provider = provider_of(issuer.url, clock)
    assert await provider.caller(issuer.token()) is not None
    issuer.close()
    issuer.keys["second"] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    clock.at += oidc.KEYS_FOR_S + 1.0
    assert await provider.caller(issuer.token()) is not None
    assert await refusal_of(provider, issuer.token("second")) == (503, "identity_provider_unavailable")
    clock.at += oidc.KEYS_KEPT_S - oidc.KEYS_FOR_S - 2.0
    assert await provider.caller(issuer.token()) is not None
    clock.at += 1.0
    assert await refusal_of(provider, issuer.token()) == (503, "identity_provider_unavailable")


async def test_an_issuer_that_hangs_is_asked_once_and_holds_nobody_else_up(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control loop asks Redis by the same threads that `asyncio.to_thread` takes, and they are few."""
    monkeypatch.setattr(oidc, "TIMEOUT_S", 3600.0)
    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: connections.append(writer), "127.0.0.1", 0)
    clock = Clock()
    provider = provider_of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", clock)
    calls = [asyncio.create_task(refusal_of(provider, issuer.token())) for _ in range(100)]
    await eventually(lambda: connections)
    assert await asyncio.to_thread(lambda: "free") == "free"
    assert not any(waiting.done() for waiting in calls)
    connections[0].close()
    assert set(await asyncio.gather(*calls)) == {(503, "identity_provider_unavailable")}
    monkeypatch.setattr(oidc, "TIMEOUT_S", 0.3)
    assert await refusal_of(provider, issuer.token()) == (503, "identity_provider_unavailable")
    assert len(connections) == 1  # it rests after a failure
    clock.at += oidc.REST_S
    assert await refusal_of(provider, issuer.token()) == (503, "identity_provider_unavailable")
    assert len(connections) == 2
    await end(server)


async def test_junk_is_refused_without_asking_the_issuer() -> None:
    provider = provider_of("http://127.0.0.1:9", Clock())
    nameless = jwt.encode({"sub": "u"}, "x" * 32, algorithm="HS256")
    for token in ("a.b.c", nameless):
        assert await refusal_of(provider, token) == (401, "invalid_admin_token")


def test_settings_that_are_not_whole_end_the_start() -> None:
    with pytest.raises(ValueError, match="needs --oidc-audience and --oidc-roles"):
        ControllerSettings(redis_url="redis://x", oidc_issuer="https://login.example.com")
    with pytest.raises(ValueError, match="'sre=king' must be VALUE=ROLE"):
        ControllerSettings(redis_url="redis://x", oidc_roles="sre=king")


def test_an_issuer_that_does_not_answer_is_503_and_named_tokens_go_on(issuer: Issuer) -> None:
    wanted = ("--oidc-issuer", "http://127.0.0.1:9", "--oidc-audience", "specpilot", "--oidc-roles", "sre=operator")
    with running_controller(arguments=wanted) as alone:
        status, body, headers = alone.call("/admin/policies", token=issuer.token())
        assert (status, body["error"]["code"]) == (503, "identity_provider_unavailable")
        assert headers["retry-after"]
        assert alone.call("/admin/policies")[0] == 200
        assert alone.call("/admin/policies/m", "PUT", {}, issuer.token())[0] == 503
        entry = alone.call("/admin/audit?limit=1")[1]["entries"][0]
        # Not `failed`: what was done and what was refused are kept apart, so that nobody without a token can push out
        # the record of what was done.
        assert (entry["result"], entry["who"], entry["status"]) == ("refused", "unknown", 503)
