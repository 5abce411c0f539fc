"""The constants of what reads and writes bytes, each with its unit and what it trades; by module."""

from typing import Final

# body.py, sse.py

CHARS_PER_TOKEN: Final = 4
"""A rough measure: it ranks engines, and stands for what a response does not state."""

UNSAID_OUTPUT_TOKENS: Final = 256
"""What a request that names no limit counts for."""

PROMPT_TOKENS_COUNTED: Final = 8192
"""The most tokens of a prompt that count as an engine's work: beyond, a cached prefix is likely."""

OUTPUT_TOKENS_COUNTED: Final = 4096
"""The most tokens of an answer that count so: limits are mostly set far above what is used."""

WALKED_MEMBERS: Final = 512
"""Members of one object that are walked through for one of them: 3 us each. OpenAI's largest request has some 40."""

WALKED_STRINGS: Final = 60_000
"""Strings of a large body that are passed over on such a walk; the other bounds allow 25,000 members, of two each."""

COPY_LIMIT_BYTES: Final = 65_536
"""Up to here a body is copied into one buffer with its field; above, it is passed on in slices."""

# content_coding.py

PIECE_BYTES: Final = 65_536
"""The most that one step decodes: 0.1 to 0.3 ms."""

CODED_MEMBERS_MAX: Final = 1000
"""Members or frames of one body, each of which costs a decoder; parallel compressors make one for some 100 kB."""

CODINGS_MAX: Final = 2
"""Codings one upon another."""

WINDOW_LOG_MAX: Final = 23
"""Window of zstd, 8 MiB: memory that a body can ask for by its first bytes. RFC 9659 allows no more."""

# form.py

PARTS_MAX: Final = 128
"""Parts of one form; OpenAI's largest has some 20."""

PART_HEAD_BYTES: Final = 4096
"""Bytes of one part's headers."""

FIELD_BYTES: Final = 16_384
"""Bytes kept of one field: a prompt. What is longer is cut for the gateway, not for the engine."""

# framing.py

HEAD_BYTES: Final = 65_536
"""Bytes of a response's line and headers; a longer head is a fault of the engine."""

# outline.py

OUTLINED_BYTES: Final = 65_536
"""Bodies up to here are parsed as they are: the worst of that size, all lists, takes 1.2 ms."""

CONTAINERS_MAX: Final = 10_000
"""Objects and lists of a large body: 10,000 of one member take orjson 1.5 ms."""

MEMBERS_MAX: Final = 25_000
"""Members of its objects, all together: 25,000 take 2.9 ms."""

ITEMS_MAX: Final = 250_000
"""Its values: 250,000 numbers take 6 ms."""

QUOTES_MAX: Final = 500_000
"""Quotes outside of escapes, two for each string."""

OUTLINE_BYTES: Final = 2 * 1024 * 1024
"""Bytes of its outline: 2 MiB of string take 2 ms, a number of that length 6 ms."""

KEPT_BYTES: Final = 2048
"""Of a long string, at each end of each part: enough for prompts to be told apart."""

# response.py

ERROR_BODY_BYTES: Final = 262_144
"""Bytes of a body that are held back until it is known whether it is an error; a longer one is an answer."""

FIRST_FRAME_BYTES: Final = 65_536
"""A first frame longer than that is no error event, so it is held back no longer; with all that comes before it."""

# response_id.py

TAG_DIGITS: Final = 6
"""24 bits: of 50 engines, two have the same tag in one fleet of 14,000."""

OWNER_DIGITS: Final = 8
"""32 bits: one in 4,000 million keys passes for the owner of a response; 72 random bits are left."""

# spec_decode.py

SERIES_MAX: Final = 1024
"""Series read of one engine: some hundred positions of several models. More are left out."""

# sse.py

TAIL_BYTES: Final = 16_384
"""Bytes kept of a JSON body's end, where its usage stands: the cost of learning from an answer is bounded by them."""

USAGE_BYTES: Final = 4_096
"""Bytes kept from the last `usage` on where that stands before the end."""

FRAME_BYTES: Final = 65_536
"""Bytes of one event that are looked at whole; of a longer one only the end is kept."""

# usage_filter.py

HELD_BYTES: Final = 65_536
"""An event longer than that is no event with usage, so it waits no longer."""
