"""The OpenAI-compatible gateway in front of the engines.

The life of one request, module by module:

- `relay.client_connection`: the client's HTTP/1.1 connection; other paths go to `pages`;
- `relay.exchange`: the request and its response; `relay.request_decisions`: its model, class and K, and its bytes for
  the engine;
- `limits.admission`: the queue while every engine is full;
- `routing.chooser`: the engine; `relay.attempts`: retries; `relay.relay`: the response on the way back;
- `wire`: the formats; `engines`: the engines as they are now; `process`: workers and their supervisor.
"""
