"""The command line's HTTP client of the admin API; prints an error reply as one line."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Annotated, Any, NoReturn
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import SettingsConfigDict

from specpilot.controller.cli.text import dry_run, note, say
from specpilot.policy.http_client import is_controller, open_url
from specpilot.policy.settings import HttpAddress, ProgramSettings, without_secrets

TIMEOUT_S = 10.0
EXIT_REFUSED = 1


class AdminSettings(ProgramSettings):
    """The address of the admin API and the token for it."""

    model_config = SettingsConfigDict(env_prefix="SPECPILOT_")

    shares_prefix = True

    admin_url: Annotated[HttpAddress, Field(description="the controller's address")] = "http://127.0.0.1:8081"
    token: Annotated[
        SecretStr | None,
        Field(
            description="the controller's admin token",
            validation_alias=AliasChoices("token", "SPECPILOT_ADMIN_TOKEN", "SPECPILOT_CONTROLLER_ADMIN_TOKEN"),
        ),
    ] = None


class WriteSettings(AdminSettings):
    """What commands that write take besides."""

    dry_run: Annotated[bool, Field(description="show the effect, and write nothing")] = False
    comment: Annotated[str, Field(description="the purpose; goes into the audit, and into a policy's history")] = ""


class AdminClient:
    """Reads from the admin API; ends the program with status 1 and one line on stderr after an error reply."""

    def __init__(self, settings: AdminSettings, program: str) -> None:
        self._program = program
        self._base = settings.admin_url.rstrip("/")
        self._token = settings.token.get_secret_value() if settings.token else None

    def ask(self, path: str) -> Any:
        """Return the JSON at `path`."""
        return self._send(path, "GET", None, {})

    def find(self, path: str) -> Any:
        """Return the JSON at `path`; `None` when the reply is 404."""
        return self._send(path, "GET", None, {}, is_optional=True)

    def refuse(self, message: str) -> NoReturn:
        """End the program with `message`."""
        note(f"{self._program}: {message}")
        sys.exit(EXIT_REFUSED)

    def _refuse_other(self, status: int) -> NoReturn:
        place = without_secrets(self._base)
        self.refuse(
            f"--admin-url: no controller answers at {place}, but another server (HTTP {status}); give the controller's"
            " address, port 8081 unless it was changed, not that of a gateway or an engine"
        )

    def _send(
        self, path: str, method: str, document: object, headers: Mapping[str, str], *, is_optional: bool = False
    ) -> Any:
        body = None if document is None else json.dumps(document).encode()
        request = Request(self._base + path, data=body, method=method, headers=dict(headers))  # noqa: S310 - scheme checked
        if body is not None:
            request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with open_url(request, timeout=TIMEOUT_S, is_own=True) as response:
                if not is_controller(response.headers):
                    self._refuse_other(response.status)
                text = response.read()
                if (notice := response.headers.get("x-specpilot-notice")) is not None:
                    note(f"{self._program}: {notice}")
                return json.loads(text) if text else None
        except HTTPError as error:
            with error:
                if not is_controller(error.headers):
                    self._refuse_other(error.code)
                if is_optional and error.code == HTTPStatus.NOT_FOUND:
                    return None
                is_unknown = error.code == HTTPStatus.UNAUTHORIZED
                self.refuse(_message_of(error) + "; give it with --token or SPECPILOT_ADMIN_TOKEN" * is_unknown)
        except (OSError, HTTPException, ValueError) as error:
            reason, place = getattr(error, "reason", error), without_secrets(self._base)
            self.refuse(f"--admin-url: no controller answers at {place}: {reason}; start it or give its address")


class AdminWriter(AdminClient):
    """Writes to the admin API too. With --dry-run it prints the effect and ends the program in place of a write."""

    def __init__(self, settings: WriteSettings, program: str) -> None:
        super().__init__(settings, program)
        self._comment = {"comment": settings.comment} if settings.comment else {}
        self._is_dry_run = settings.dry_run

    def write(
        self,
        method: str,
        path: str,
        document: object = None,
        condition: Mapping[str, str] | None = None,
        *,
        warning: Callable[[], Sequence[str]] = list,
    ) -> Any:
        """Write `document` (`None`: no body) and return the reply's JSON, `None` when it is empty.

        `condition` are headers. `warning` gives lines to print unless the write is rejected.
        """
        if self._is_dry_run:
            effect = self.effect(method, path, document, condition)
            note(*warning())
            say(*effect)
            sys.exit(0)
        answer = self._send(_with_query(path, self._comment), method, document, condition or {})
        note(*warning())
        return answer

    def effect(self, method: str, path: str, document: object, condition: Mapping[str, str] | None = None) -> list[str]:
        """Return the effect that a write would have, as lines for a person."""
        path = _with_query(path, {**self._comment, "validate_only": "true"})
        return dry_run(self._send(path, method, document, condition or {}))


def _with_query(path: str, parameters: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(parameters)}" if parameters else path


def _message_of(error: HTTPError) -> str:
    try:
        return f"{json.loads(error.read())['error']['message']} (HTTP {error.code})"
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return f"the controller answered HTTP {error.code}"
