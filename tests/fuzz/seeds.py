"""Where the fuzzers begin: for each target whole inputs that matter, and the words that inputs are made of."""

from tests.support.scripted_engine import DONE, LAST_CHUNK, SSE_HEAD, chunk, completion, event, reply, usage_event

BODY = b'{"model":"tiny"}'
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
LENGTH = b"content-length: 16\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"10\r\n" + BODY + b"\r\n0\r\n\r\n"

SEEDS: dict[str, list[bytes]] = {
    "heads": [
        HEAD + LENGTH + b"\r\n" + BODY,
        HEAD + CHUNKED + b"\r\n" + CHUNKS,
        (HEAD + LENGTH + b"\r\n" + BODY) * 2,
        HEAD + CHUNKED + b"\r\n10;a=b\r\n" + BODY + b"\r\n0\r\nx: y\r\n\r\n" + HEAD + LENGTH + b"\r\n" + BODY,
        HEAD + LENGTH + CHUNKED + b"\r\n" + CHUNKS,
        HEAD + b"connection: upgrade\r\nupgrade: h2c\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD + b"expect: 100-continue\r\nauthorization: Bearer x\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + LENGTH + b"\r\n" + BODY,
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" + HEAD + LENGTH + b"\r\n" + BODY,
        HEAD + CHUNKED.replace(b"chunked", b"gzip, chunked") + b"\r\n" + CHUNKS,
        HEAD + b"transfer-encoding: gzip\r\n" + CHUNKED + b"\r\n" + CHUNKS,
        HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNKED + b"\r\n" + CHUNKS,
        HEAD + b"host: y\r\n" + LENGTH + b"\r\n" + BODY,
        HEAD + LENGTH + b"content-length: 15\r\n\r\n" + BODY,
        HEAD + b"content-length: " + b"0" * 5000 + b"16\r\n\r\n" + BODY,
        b"\nPOST  /v1/completions?x  HTTP/1.1\r\nhost: x\r\n" + LENGTH + b"\r\n" + BODY,
        b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n" + HEAD + LENGTH + b"\r\n" + BODY,
        b"GET http://x HTTP/1.1\r\nhost: x\r\n\r\n" + HEAD + LENGTH + b"\r\n" + BODY,
        b"GET http://x/health?y HTTP/1.1\r\nhost: x\r\nconnection: close, x-y\r\nx-y: z\r\n\r\n",
    ],
    "bodies": [
        BODY,
        b'{"model":"m","stream":true,"messages":[{"role":"user","content":[{"text":"\xc3\xa9\\u00e9\\"}"}]}]}',
        b'{"stream_options":{"include_usage":false,"a":[1,{"b":"]"}]},"model":"m"}',
        b'{"vllm_xargs":{"k_max":1,"k_max":true},"mod\\u0065l":"m","model":"m"}',
        b'{ "stream\\u005foptions" : null ,\n"model":"m", "stream_options":{}, "priority":-1 }',
        b'{"model":"m","max_tokens":-1,"metadata":{"traffic_class":"y"},"service_tier":"flex","tools":[{}]}',
    ],
    "answers": [
        b"a" + reply(completion()),
        b"a" + SSE_HEAD + chunk(event("a")) + chunk(DONE) + LAST_CHUNK,
        b"b" + SSE_HEAD + chunk(event("a")) + b"5\r\nda",
        b"a" + SSE_HEAD + chunk(event("a")) + chunk(DONE).removesuffix(b"\n") + LAST_CHUNK,
        b"b" + SSE_HEAD.replace(CHUNKED, b"") + event("a") + DONE,
        b"a" + reply(b'{"error":{"message":"x"}}', "429 Too Many Requests"),
        b"a" + reply(b"Internal Server Error", "500 Internal Server Error", "text/plain"),
        b"a" + b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + reply(completion()),
        b"a" + reply(b"\r\n\r\n {}\r\n"),
        b"a" + reply(completion(), extra="content-length: 5\r\n"),
        b"a" + reply(CHUNKS, extra=CHUNKED.decode()),
        b"a" + b"HTTP/1.1 204 No Content\r\n\r\n",
        b"b" + b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n\r\n{}",
        b"a" + SSE_HEAD + b"00\r\ndata: {}\n\n\r\n" + chunk(DONE),
        b"a" + SSE_HEAD + b"0\n\nHTTP/1.1 200 OK\r\n",
        b"b" + SSE_HEAD.replace(CHUNKED, b"") + b"dataset: 1\n\nlines\n\n" + DONE,
        b"b" + SSE_HEAD.replace(CHUNKED, b"") + b"dataset: 1\n\nlines\n\n" + DONE + LAST_CHUNK[:5] + b"\x01",
        b"a" + SSE_HEAD + chunk(event("a")).replace(b"\r\n", b"\r\n" + DONE, 1) + chunk(DONE) + LAST_CHUNK,
    ],
    "framing": [
        LAST_CHUNK,
        chunk(b"abc") + LAST_CHUNK,
        b"3+\r\nabc\r\n0\r\n\r\n",
        b"3 \r\nabc\n0\r\n\r\n",
        b"3;a=b\r\nabc\r\n" + b"0" * 5 + b"a\r\n0123456789\r\n0\r\nx: y\r\nz: \r\n\r\nrest",
    ],
    "taps": [
        event("a") + event("b", finish="stop") + usage_event(7, 2.5) + DONE,
        (b": ping\n\n" + event("\u00e9") + usage_event(7) + DONE).replace(b"\n", b"\r\n"),
        b'event: error\ndata: {"type":"error"}\n\ndata: {"error":{}}\n\nid: 1\n\n\ndata:{}\n\n',
        completion(acceptance_length=2.5),
    ],
}

WORDS: dict[str, list[bytes]] = {
    "heads": [
        HEAD, LENGTH, CHUNKED, CHUNKS, BODY, b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b"\xff",
        b":", b",",
        b"0\r\n", b"10\r\n", b"0\r\n\r\n", b";a=b", b"content-length: ", b"transfer-encoding: ", b"identity",
        b"gzip, ",
        b"connection: close\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n", b"expect: 100-continue\r\n", b"chunked",
        b"host: y\r\n", b"HTTP/1.0", b"HTTP/1.1", b"HTTP/0.9", b"HTTP/2.0", b"GET ", b"HEAD ", b"CONNECT ",
        b"OPTIONS * ",
        b"POST /tokenize HTTP/1.1\r\n", b"/v1/completions", b"?x", b"http://x", b"x-request-id: a\r\n", b"0x",
        b"+", b"_",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"x-traffic-class: batch\r\n", b"16", b"000",
    ],
    "bodies": [
        b'"model":"m"', b'"vllm_xargs":', b'"priority":', b'"k_max":', b'"\\u0070riority":', b"{", b"}",
        b"[", b"]", b",", b":",
        b'"', b"\\", b'\\"', b"\\u00e9", b"\\ud83d\\ude42", b"null", b"true", b"1e5", b"-0", b" ", b"\n", b"{}",
        b"[]",
        b'"stream":true', b'"max_tokens":', b'"metadata":{"traffic_class":"c"}', b'"messages":[{"content":"x"}]',
        b'"x"',
    ],
    "answers": [
        SSE_HEAD, b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 304 \r\n",
        b"HTTP/1.1 503 Service Unavailable\r\n", CHUNKED, LENGTH, BODY, LAST_CHUNK, event("a"), chunk(event("a")), DONE,
        b"\r\n", b"\r\n\r\n", b"\n", b"\0", b"\xff", b"content-type: text/event-stream\r\n", b"connection: close\r\n",
        b"retry-after: 3\r\n", b"content-length: 0\r\n", b"content-length: 2\r\n", b"{}", b"5\r\n", b"a", b"b",
        b" ", b":", b"data", b"data: ",
        b"x-request-id: evil\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"HTTP/1.1 204 No Content\r\n",
    ],
    "framing": [
        b"0\r\n", b"\r\n", b"0\r\n\r\n", b"1\r\na\r\n", b"a\r\n0123456789\r\n", b";x=y", b"\n", b"\r", b"00",
        b"f", b"x: y\r\n",
        b" ", b"\t", b":", b"\0", b"\xff", b"+", b"0x", b"ffffffffffff\r\n", b"fffffffffffff\r\n",
    ],
    "taps": [
        b"\n", b"\r\n", b"\n\n", b"\r\n\r\n", b"\r", b"data:", b"data: ", b"[DONE]", b"event: error", b"event: x",
        b"id: 1",
        b": ping", b'{"error"', b'"usage":', b'"usage":null', b'"completion_tokens":5', b'{"output_tokens":7}',
        b"{", b"}",
        b'"metrics":{"speculative_decoding":{"mean_acceptance_length":2.5}}', b"\xc3", b"\xa9", event("a"), DONE,
        usage_event(3, 1.5), b"x" * 300,
    ],
}  # fmt: skip
