"""Access to the admin API: roles, and tokens as they are stored.

A token reads `spt_<id>_<secret>`. The id finds the record. The secret has 256 random bits, so a plain SHA-256 of the
whole token is enough to store.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import StrEnum

TOKEN_NAME_LIMIT = 64
"""Characters of a token's name."""

_TOKEN = re.compile(r"spt_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{12}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@+-]{0,63}")


class Role(StrEnum):
    """The rights of a caller. Each role includes those before it."""

    VIEWER = "viewer"  # read
    OPERATOR = "operator"  # change how K is steered: policies, canaries, freezes; and model routes
    ADMIN = "admin"  # grant access: tokens and client keys

    def includes(self, other: "Role") -> bool:
        """Whether this role has all rights of `other`."""
        order = tuple(Role)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class AdminToken:
    """A named token as it is stored: only its SHA-256, never the token. Times are Unix seconds.

    `expires_at` is `None` for a token that does not expire. `rotated_at` is the time of its latest rotation.
    """

    token_id: str
    name: str
    role: Role
    sha256: str
    created_at: float
    created_by: str = ""
    expires_at: float | None = None
    rotated_at: float | None = None

    def has_expired(self, now: float) -> bool:
        """Whether it has expired at `now`."""
        return self.expires_at is not None and now >= self.expires_at

    def is_token(self, text: str) -> bool:
        """Whether `text` is this token; takes the same time for every wrong one."""
        return hmac.compare_digest(sha256_of(text), self.sha256)


def roles_in(text: str) -> dict[str, Role]:
    """Return the roles in `text`, such as `sre=operator,platform=admin`; raises `ValueError` for any other text."""
    roles = {}
    for part in filter(None, (item.strip() for item in text.split(","))):
        value, equals, role = part.rpartition("=")
        if not equals or not value or role not in tuple(Role):
            raise ValueError(f"{part!r} must be VALUE=ROLE, the role one of {', '.join(Role)}")
        roles[value] = Role(role)
    return roles


def sha256_of(text: str | bytes) -> str:
    """Return the hash under which a token or a client key is stored, the only form of it that is kept."""
    return hashlib.sha256(text if isinstance(text, bytes) else text.encode(errors="surrogateescape")).hexdigest()


def id_of(token: str) -> str | None:
    """Return the id in `token`; `None` when it cannot be a named token."""
    match = _TOKEN.fullmatch(token)
    return match[1] if match else None


def is_id(text: str) -> bool:
    """Whether `text` has the form of the ids that the admin API gives; other texts in their place may be secrets."""
    return _ID.fullmatch(text) is not None


def is_token_name(name: str) -> bool:
    """Whether `name` may name a token: 1 to 64 letters, digits, spaces and `._@+-`, the first a letter or digit."""
    return _NAME.fullmatch(name) is not None
