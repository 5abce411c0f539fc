"""The engine for a prepared request: the first one, and another for a retry.

While no engine of its model is in service, a request with a model route falls back to the route's next model.
"""

from collections.abc import Collection

from specpilot.gateway.engines.fleet import Engine
from specpilot.gateway.relay.context import RETRY_AFTER_S, GatewayContext
from specpilot.gateway.relay.prepared_request import PreparedRequest
from specpilot.gateway.routing.model_route import RouteRule, first_serving
from specpilot.gateway.wire.errors import EngineUnavailableError


def first_engine(context: GatewayContext, prepared: PreparedRequest, session: str | None) -> Engine:
    """Return the engine to try first, one with room if there is one. `session` is the value of the session header.

    Raises `EngineUnavailableError`.
    """
    avoided = () if context.admission is None else context.admission.full_engines(prepared.model)
    engine = _pick(context, prepared, session, avoided)
    if engine is None:
        message = f"no engine of `{prepared.model}` takes requests now; try again"
        raise EngineUnavailableError(message, param="model", retry_after_s=RETRY_AFTER_S)
    return engine


def another_engine(
    context: GatewayContext,
    prepared: PreparedRequest,
    session: str | None,
    tried: Collection[Engine],
) -> Engine | None:
    """Return an engine for a retry, which is then paid for; `None` if none is allowed or there is none."""
    now = context.monotonic()
    if not context.budget.allows(now):
        return None  # checked before the choice, which is counted and stores the prompt's points
    engine = _pick(context, prepared, session, tried)
    if engine is None or engine in tried:
        return None  # there is no other engine, or no other has the stored response
    context.budget.spend(now)
    return engine


def _pick(
    context: GatewayContext,
    prepared: PreparedRequest,
    session: str | None,
    avoid: Collection[Engine],
) -> Engine | None:
    """Return the engine for a request, with a fall-back to other models; `None` when there is none.

    `avoid` are engines that are full or have failed the request.
    """
    while True:
        engine = context.fleet.pick(prepared.take_facts(), session, context.monotonic(), avoid)
        if engine is not None or not _fall_back(context, prepared):
            return engine


def _fall_back(context: GatewayContext, prepared: PreparedRequest) -> bool:
    """Turn `prepared` to the next model with an engine in service; return whether there is one."""
    models, prepare_for, requested_model = prepared.fallback, prepared.prepare_for, prepared.requested_model
    if prepare_for is None or requested_model is None:
        return False
    index = first_serving(models, context.fleet.has_engine)
    if not context.fleet.has_engine(models[index]):
        return False
    prepared.turn_to(prepare_for(models[index]))
    prepared.set_fallback(models[index + 1 :], prepare_for)
    context.metrics.count_route(requested_model, models[index], RouteRule.FALLBACK.value)
    return True
