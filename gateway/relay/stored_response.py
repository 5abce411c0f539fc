"""Requests for a response that an engine keeps: finds their engine, and checks that their key owns the response."""

import orjson

from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.wire.body_fields import PREVIOUS, REQUEST_ID
from specpilot.gateway.wire.errors import EngineUnavailableError, InvalidFieldError, ResponseNotFoundError
from specpilot.gateway.wire.request_facts import RequestFacts
from specpilot.gateway.wire.response_id import is_of_another
from specpilot.gateway.wire.routes import asks_stream, response_id


def reference(context: GatewayContext, target: str) -> bytes:
    """Return the facts of a request for the stored response at `target` as the JSON body that it lacks.

    Raises `ResponseNotFoundError`, and `EngineUnavailableError` while no engine is known.
    """
    identifier = response_id(target)
    engines = context.fleet.engines.values()
    engine = context.fleet.maker(identifier, engines)
    if engine is None or not engine.models:
        if not engines:
            raise EngineUnavailableError("no engine is known yet; try again", retry_after_s=RETRY_AFTER_S)
        raise _not_found(identifier)
    model = engine.registered_model or min(engine.models)
    return orjson.dumps({"model": model, PREVIOUS: identifier, "max_tokens": 0, "stream": asks_stream(target)})


def check_owner(facts: RequestFacts, key_id: str) -> None:
    """Reject a request of the key `key_id` that reads, continues, cancels or replaces another key's response.

    Raises `ResponseNotFoundError` and `InvalidFieldError`.
    """
    previous, chosen = facts.previous_response, facts.body.get(REQUEST_ID)
    if previous is not None and is_of_another(previous, key_id):
        raise _not_found(previous)
    if type(chosen) is str and is_of_another(chosen, key_id):
        message = f"{REQUEST_ID} is the identifier of another API key's response; choose another one, or leave it out"
        raise InvalidFieldError(message, param=REQUEST_ID)


def _not_found(identifier: str) -> ResponseNotFoundError:
    return ResponseNotFoundError(f"no engine here made the response `{identifier[:128]}`, or it has gone")
