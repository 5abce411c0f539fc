"""Reads a program's settings: flags first, then environment, then defaults, all checked together.

Each program has exactly one class derived from `ProgramSettings` and reads it once, at its start; nothing else reads
the environment. Faults are printed, one line a setting, with the remedy, and end the program with status 2. An unknown
variable with the prefix of a program's settings is a fault too, because it may be misspelt.

Every text follows the rule of `clean_text`. No line contains a value that may be a secret.
"""

import logging
import os
import re
import sys
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Annotated, ClassVar, NoReturn, TypeVar, get_args

from pydantic import AfterValidator, AliasChoices, SecretStr, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, CliSettingsSource, SettingsConfigDict, SettingsError

from specpilot.policy import clean_text, json_log, standard_streams
from specpilot.policy.codec import faults_of

_log = logging.getLogger(__name__)


def _address(url: str) -> str:
    if not clean_text.is_address(url):  # not shown: it may hold a secret anywhere
        raise ValueError("is no address; write http://HOST:PORT or https://HOST")
    return url


HttpAddress = Annotated[str, AfterValidator(_address)]
"""The address of a web server."""


class ProgramSettings(BaseSettings):
    """Base of every program's settings: flags in kebab case, environment variables in upper case."""

    model_config = SettingsConfigDict(
        extra="forbid",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        env_ignore_empty=True,
        populate_by_name=True,
    )

    shares_prefix: ClassVar[bool] = False
    """Whether variables of other programs have the same prefix; unknown variables are then ignored."""

    free_text: ClassVar[frozenset[str]] = frozenset()
    """Fields that hold JSON or flags, and so may have line breaks."""

    with_login: ClassVar[frozenset[str]] = frozenset({"redis_url"})
    """Fields whose address for HTTP may hold a user name and a password."""

    @field_validator("*", mode="before")
    @classmethod
    def _clean(cls, value: object, info: ValidationInfo) -> object:
        return cleaned(cls, str(info.field_name), value, free_text=cls.free_text, with_login=cls.with_login)


def cleaned(
    kind: type[BaseSettings],
    name: str,
    value: object,
    *,
    free_text: Collection[str] = (),
    with_login: Collection[str] = (),
) -> object:
    """Return `value` of the field `name` of `kind` without surrounding white space; log that there was some.

    Raises `ValueError` without the value for one that cannot be sent in a header.
    """
    if isinstance(value, tuple | list):
        return type(value)(cleaned(kind, name, item) for item in value)
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str) or not text or name in free_text:
        return value
    clean = clean_text.stripped(text)
    annotation = kind.model_fields[name].annotation
    fault = clean_text.fault_of(clean, is_secret=SecretStr in (annotation, *get_args(annotation)))
    if fault is None and name not in with_login and clean_text.has_login(clean):
        fault = "holds a user name or a password in its address; leave them out"
    if fault is not None:
        raise ValueError(fault)
    if clean != text:
        _log.warning("%s", clean_text.removed(_flag(name)))
    return clean


_SERVICE_LINK = re.compile(r"\w+_(SERVICE_HOST=.*|SERVICE_PORT(_\w+)?=\d+|PORT(_\d+_\w+)?=\w+://.*|PORT_\d+_\w+=.*)")
"""Variables that Kubernetes adds for each service, also if the service's name begins like a program's."""

S = TypeVar("S", bound=ProgramSettings)


def load(kind: type[S], program: str, arguments: Sequence[str]) -> S:
    """Return the settings of `arguments` and the environment.

    Ends the process with status 0 after `--help`, and with status 2 and a line per fault on bad settings.
    """
    standard_streams.open_closed()
    if "log_format" in kind.model_fields:
        variable = kind.model_config["env_prefix"].upper() + "LOG_FORMAT"
        if json_log.is_asked_for(arguments, os.environ.get(variable)):
            json_log.use()
    try:
        source: CliSettingsSource[S] = CliSettingsSource(
            kind,
            cli_prog_name=program,
            cli_parse_args=[_one_dash(item) for item in arguments],
            cli_exit_on_error=False,  # the parser would print its whole usage
        )
        unknown = [] if kind.shares_prefix else unknown_variables(kind)
        if unknown:
            fail(program, *unknown)
        return kind(_cli_settings_source=source)  # type: ignore[call-arg] # an argument of BaseSettings
    except ValidationError as error:
        fail(program, *(f"{_flag(fault.field)}: {fault.problem}" for fault in faults_of(error)))
    except SettingsError as error:
        fail(program, *_argument_faults(kind, str(error.__cause__ or error)))


def _argument_faults(kind: type[BaseSettings], message: str) -> list[str]:
    """Return the parser's complaint as lines, each with a remedy."""
    message = re.sub(r"(--?[\w-]+)=\S*", r"\1", message.removeprefix("error parsing CLI: "))  # it may be a secret
    unknown = message.removeprefix("unrecognized arguments: ")
    if unknown == message:
        return [f"{message}; --help lists the arguments"]
    flags = [item.partition("=")[0] for item in unknown.split() if item.startswith("-")]
    if not flags:  # they may be the rest of a secret
        return ["more arguments than expected; quote a value that holds white space; --help lists the arguments"]
    known = [_flag(name) for name in kind.model_fields]
    lines = []
    for flag in dict.fromkeys(flags):
        close = get_close_matches(flag, known, n=1)
        remedy = f"did you mean {close[0]}?" if close else "--help lists the flags"
        # A value, which may be a secret, may be joined to the flag: -pVALUE, --tokenVALUE.
        joined = [name for name in known if flag.startswith(name)]
        shown = f"{joined[0]}..." if joined else flag if flag.startswith("--") else flag[:2]
        lines.append(f"{shown}: there is no such flag; {remedy}")
    return lines


def unknown_variables(kind: type[BaseSettings]) -> list[str]:
    """Return a line for each environment variable with the prefix of `kind` that is none of its settings."""
    prefix = kind.model_config["env_prefix"].upper()
    aliases = [field.validation_alias for field in kind.model_fields.values()]
    names = {prefix + name.upper() for name in kind.model_fields}
    names |= {str(name).upper() for alias in aliases if isinstance(alias, AliasChoices) for name in alias.choices}
    known = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    faults = []
    for name, value in sorted(os.environ.items()):
        rest = name.upper().removeprefix(prefix)
        if not name.upper().startswith(prefix) or rest in known or _SERVICE_LINK.fullmatch(f"{name}={value}"):
            continue
        close = get_close_matches(rest, known, n=1)
        remedy = f"did you mean {prefix}{close[0]}?" if close else "remove it, or take one that the documentation lists"
        faults.append(f"{name}: there is no such setting; {remedy}")
    return faults


def fail(program: str, *lines: str) -> NoReturn:
    """Print the faults that prevent the start of `program`, one line each, and end it with status 2."""
    for line in lines:
        if json_log.is_used():
            logging.getLogger(program).critical("%s", line)
        else:
            sys.stderr.write(f"{program}: {line}\n")
    sys.exit(2)


def without_secrets(url: str) -> str:
    """Return `url` without its parts that may hold a password: `***` for the user part and the query (`?password=`).

    Of a URL with an @ behind a question mark, which may be in a password, the scheme is left.
    """
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    rest, has_query, query = rest.partition("?")
    _, at, place = rest.rpartition("@")
    if "@" in query:
        place = "***"
    return f"{scheme}{mark}{'***@' if at else ''}{place}{'?***' if has_query else ''}"


def _one_dash(argument: str) -> str:
    """Return `-k` for `--k`: the library accepts one dash only for a setting of one letter."""
    return argument[1:] if re.fullmatch(r"--[a-z](=.*)?", argument) else argument


def _flag(field: str) -> str:
    return "--" + field.split(".", maxsplit=1)[0].replace("_", "-")
