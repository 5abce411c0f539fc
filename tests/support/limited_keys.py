"""API keys with limits."""

from specpilot.policy.api_key import ApiKey

L = 600
"""Requests a minute."""


def key(requests: int | None = L, tokens: int | None = None) -> ApiKey:
    return ApiKey("k", "ab" * 32, requests_per_minute=requests, tokens_per_minute=tokens)


def places(limit: int, **more: int) -> ApiKey:
    return ApiKey("k", "ab" * 32, max_concurrent_requests=limit, **more)
