import gzip

import pytest

from specpilot.gateway.app import create_context
from specpilot.gateway.relay.context import GatewayContext
from specpilot.gateway.relay.request_body import RequestBody
from specpilot.gateway.settings import GatewaySettings
from specpilot.gateway.wire.heads import read_request_head
from specpilot.policy.clock import SystemClock

LARGE = b'{"model":"m","prompt":"' + b"x" * 10_000_000 + b'"}'


def compressed(text: bytes) -> tuple[GatewayContext, RequestBody]:
    context = create_context(GatewaySettings(engine="http://127.0.0.1:1"), SystemClock(), None)  # type: ignore[arg-type]
    body = RequestBody(context, read_request_head([(b"content-encoding", b"gzip")]))
    assert body.read_codings() is None
    assert body.feed(gzip.compress(text)) is None
    return context, body


async def test_a_compressed_body_is_read_as_what_it_decodes_to() -> None:
    context, body = compressed(b'{"model":"m"}')
    assert body.is_encoded
    await body.decode()
    assert not body.is_encoded
    assert body.finish() == ((b'{"model":"m"}',), None)
    body.release()
    assert context.body_bytes == 0


async def test_a_body_that_is_dropped_before_it_is_decoded_counts_no_longer() -> None:
    context, body = compressed(b'{"model":"m"}')
    body.drop()
    await body.decode()
    assert context.body_bytes == 0


@pytest.mark.parametrize("is_dropped", [False, True])
async def test_decoding_ends_in_the_pause_in_which_the_body_is_dropped(is_dropped: bool) -> None:
    context, body = compressed(LARGE)
    decoding = body.decode()
    decoding.send(None)  # up to its first pause
    read = context.body_bytes
    assert 0 < read < len(LARGE)
    if is_dropped:
        body.drop()
    for _ in range(2):
        try:
            decoding.send(None)
        except StopIteration:
            break
    assert (context.body_bytes == 0) == is_dropped
    decoding.close()
    body.drop()
    assert context.body_bytes == 0
