"""Serves the console's static files, with a content security policy that forbids all other sources.

The files need no token, because they hold no data: the console reads all data from the admin API.
"""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response

from specpilot.controller.admin.problems import ApiError

_FOLDER = Path(__file__).parent / "console"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


def console_pages() -> APIRouter:
    """Return the routes of the console."""
    router = APIRouter(include_in_schema=False)
    files = {file.name: file for file in _FOLDER.iterdir() if file.suffix in _TYPES}

    @router.get("/")
    async def console() -> Response:
        return _page(files["index.html"])

    @router.get("/console/{name}")
    async def console_file(name: str) -> Response:
        if name not in files:
            raise ApiError(404, "not_found", "the console has no such file")
        return _page(files[name])

    return router


def _page(file: Path) -> Response:
    return FileResponse(file, media_type=_TYPES[file.suffix], headers=_HEADERS)
