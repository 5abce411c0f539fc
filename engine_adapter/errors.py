"""Errors of the engine adapter. Each message names the fault and the remedy."""

from collections.abc import Iterable


class AdapterError(Exception):
    """Root of the adapter's errors. `status` is the HTTP status of the control route's answer."""

    status = 500
    code = "adapter_error"


class UnsupportedEngineError(AdapterError):
    """The adapter cannot steer this engine: it refuses to start, with the reason in one sentence."""

    code = "unsupported_engine"


class InvalidSettingsError(AdapterError):
    """Invalid settings; `faults` has a line for each, with its variable."""

    code = "invalid_settings"

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(self.faults))


class ScheduleRefusedError(AdapterError):
    """A schedule that this engine must not apply; the present one stays in force."""

    status = 422
    code = "schedule_refused"

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        super().__init__(f"{field}: {problem}")


class StaleScheduleError(ScheduleRefusedError):
    """A schedule that is not newer than the one in force."""

    status = 409
    code = "schedule_not_newer"
