"""The name of the store in tests and programs until they use `policy.store`."""

from specpilot.policy.store import Store as RedisStore

__all__ = ["RedisStore"]
