"""The gateway that many teams write first: FastAPI with httpx.

`python -m specpilot.bench.gateway.naive_proxy PORT ENGINE`
"""

import sys
from collections.abc import AsyncIterator

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse


def create_app(engine: str) -> FastAPI:
    """Return a proxy to one engine that parses every body, and relays streams event by event."""
    app = FastAPI()
    client = httpx.AsyncClient(
        base_url=engine, timeout=600.0, limits=httpx.Limits(max_connections=None), trust_env=False
    )

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.json()
        if not body.get("stream"):
            answer = await client.post("/v1/chat/completions", json=body)
            return Response(answer.content, answer.status_code, media_type="application/json")
        upstream = await client.send(client.build_request("POST", "/v1/chat/completions", json=body), stream=True)

        async def relay() -> AsyncIterator[bytes]:
            try:
                async for part in upstream.aiter_bytes():
                    yield part
            finally:
                await upstream.aclose()

        return StreamingResponse(relay(), upstream.status_code, media_type="text/event-stream")

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


if __name__ == "__main__":
    uvicorn.run(create_app(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), access_log=False)
