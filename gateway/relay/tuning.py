"""The constants of connections and exchanges, each with its unit and what it trades; by module."""

from typing import Final

# attempt.py

STOOD_STILL_S: Final = 0.25
"""A time-out that comes so much too late says more of this process than of the engine."""

# client_connection.py

HEAD_BYTES: Final = 65_536
"""Bytes of a request's line and headers, and between two bytes of its body; uvicorn's own bound."""

HEADERS_MAX: Final = 129
"""One more than a request may have: each costs 0.7 us here, and more at the engine."""

PIPELINED: Final = 16
"""Requests that may wait behind another on one connection; beyond, the rest of the connection is ignored."""

PIPELINED_BODY_BYTES: Final = 1_048_576
"""Bytes of body that such a request may have: it is held for as long as the one before it takes."""

LARGE_READ_BYTES: Final = 65_536
"""Reads from there on are those of large bodies; uvloop reads up to 256,000 bytes at once, 32 times in a row."""

GIVE_WAY_BYTES: Final = 500_000
"""After so much in large reads a client waits for one turn of the loop: two reads, each up to 1.5 ms at worst."""

PIECE_BYTES: Final = 2048
"""Shorter reads are parsed at once: 80 requests at most, some 3 ms where nothing is compiled."""

LINES_A_TURN: Final = 128
"""Lines of a longer read that are parsed in one turn of the loop: 64 requests of no headers or 64 chunks of one byte,
some 3 ms; the most headers that one request may have."""

LINGER_S: Final = 5.0
"""Seconds that a client gets to read the last answer before its connection is closed under it."""

DRAINING_IDLE_S: Final = 1.0
"""Seconds after which an idle connection is closed in the grace of a drain."""

# context.py

SWEEP_S: Final = 0.1
"""Seconds between two looks at all time-outs: how late one may be, against a walk through all requests."""

# exchange.py

DECODING_TURN_S: Final = 0.001
"""Seconds of decoding one body after which others have their turn."""

UNREAD_BYTES: Final = 64 * 1024 * 1024
"""A refused body up to here is read and dropped, so that its connection can serve on; a longer one ends it."""

# request_body.py

PART_BYTES: Final = 4096
"""Smaller parts of a body are joined: one of two bytes takes 56 as an object of its own."""

BLOCK_BYTES: Final = 65_536
"""So many joined bytes make a part: less makes more parts, more takes longer to copy."""

# prepared_request.py

RETRY_AFTER_S: Final = 1.0
"""Seconds that a client is told to wait when the gateway cannot know better."""

MARKED_BYTES: Final = 2048
"""Of a body's beginning and of its end what is hashed to tell bodies that fail apart: 0.4 us a KiB."""

# relay.py

SMALL_BODY_BYTES: Final = 65_536
"""Up to here a body is copied behind its head: one write is cheaper than two."""

STALE_S: Final = 1.0
"""An engine that closed an idle connection is heard of within a round trip of sending; later it broke off its work."""
