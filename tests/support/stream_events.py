"""What engines send at the head of a stream, to keep it alive, and in place of its content."""

OPEN_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
"""Of a stream without a length and without chunks: it ends with its connection."""

CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"id":"r","usage":null}}\n\n'
MESSAGE_START = b'event: message_start\ndata: {"type":"message_start","message":{"id":"m","content":[]}}\n\n'
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
ENGINE_ERROR = b'data: {"error": {"message": "engine core died", "type": "InternalServerError", "code": 500}}\n\n'
