"""The rule for texts that people and files state: secrets, addresses, names. Pure.

A secret that ends in a line break (a Kubernetes secret often does) would write the break into the head of a request,
and the rest of the head would be read as another request. So surrounding white space is removed, and other control
characters are refused. No message contains the text.
"""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from specpilot.policy.errors import Fault, InvalidDocumentError

BYTE_ORDER_MARK = "\ufeff"


def stripped(text: str) -> str:
    """Return `text` without white space, and without a byte order mark, around it."""
    return text.strip().removeprefix(BYTE_ORDER_MARK).strip()


def fault_of(text: str, *, is_secret: bool = False) -> str | None:
    """Return what is wrong with the stripped `text`, without a part of it; `None`: nothing."""
    if is_secret and not text:
        return "holds nothing but white space; state it, or leave it out"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return "is not UTF-8"
    control = next((char for char in text if ord(char) < ord(" ") or 0x7F <= ord(char) <= 0x9F), None)  # noqa: PLR2004
    if control is not None:
        return f"holds the control character U+{ord(control):04X}; state it without"
    if is_secret and not text.isascii():
        return "holds a character that is not ASCII, which no header can carry; choose another"
    return None


def has_login(text: str) -> bool:
    """Whether `text` has an address for HTTP that holds a user name or a password."""
    return re.search(r"https?://[^/\s]*@", text, re.IGNORECASE) is not None


def is_address(text: str) -> bool:
    """Whether `text` is the address of a web server, to which a path can be added."""
    try:
        parts = urlsplit(text)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # raises for a name that no resolver accepts
    except ValueError:
        return False
    return is_good and parts.path.isascii() and not any(char.isspace() or char in "?#" for char in text)


def removed(name: str) -> str:
    """Return the line about white space that was removed."""
    return f"{name}: white space around the value was removed"


def secret(name: str, text: str, say: Callable[[str], None] = lambda _: None) -> str:
    """Return the secret `text` of `name` as it can be sent; raises `InvalidDocumentError`, which names `name` only.

    `say` gets a line if white space was removed.
    """
    clean = stripped(text)
    if clean != text:
        say(removed(name))
    fault = fault_of(clean, is_secret=True)
    if fault is not None:
        raise InvalidDocumentError("secret", (Fault(name, fault),))
    return clean
