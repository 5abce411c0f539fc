"""What is shown of settings."""

import pytest

from policy.settings import without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://user:hush@host:1/0", "redis://***@host:1/0"),
        ("redis://user:hu@sh@host:1/0", "redis://***@host:1/0"),
        ("rediss://host:1/0?password=hush&db=1", "rediss://host:1/0"),
        ("unix://user:hush@/run/redis.sock?password=hush", "unix://***@/run/redis.sock"),
        ("user:hush@host", "***@host"),
        ("host:1?password=hush", "host:1"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
