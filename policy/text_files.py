"""Text files as people's editors and shells write them."""

import json
from pathlib import Path


def read_text(path: Path) -> str:
    """Return the text in `path` without a byte order mark; UTF-8, or UTF-16 or 32, which some shells write.

    Raises `OSError`, and `UnicodeDecodeError` for other encodings.
    """
    data = path.read_bytes()
    return data.decode(json.detect_encoding(data)).removeprefix("\ufeff")
