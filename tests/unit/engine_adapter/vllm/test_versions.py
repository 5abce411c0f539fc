"""Versions of vLLM: which were tested, what one lacks, and which model runner is chosen."""

import pytest

from specpilot.engine_adapter.errors import UnsupportedEngineError
from specpilot.engine_adapter.vllm import versions


@pytest.mark.parametrize("version", ["0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.32.1", "0.32.0+cpu", "0.33.0"])
def test_an_accepted_version_that_lacks_nothing_passes(version: str) -> None:
    assert versions.version_fault(version, ()) is None


@pytest.mark.parametrize("version", ["0.28.0", "0.34.0", "0.3.2", "0.320.0"])
def test_an_untested_version_is_refused_with_an_override(version: str) -> None:
    fault = versions.version_fault(version, ())
    assert fault is not None
    for word in (version, "no engine of it was tested", "0.32", "SPECPILOT_ENGINE_ANY_VLLM=1"):
        assert word in fault


def test_what_a_version_lacks_is_named() -> None:
    fault = versions.version_fault("0.32.9", ("Scheduler.a(b)", "Request.c", "D", "E", "F"))
    assert fault is not None
    for word in ("0.32.9", "Scheduler.a(b), Request.c, D and 2 more", "SPECPILOT_ENGINE_ANY_VLLM=1"):
        assert word in fault


def test_an_unfit_vllm_starts_only_with_the_override(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(versions, "ACCEPTED", ("0.1",))
    with pytest.raises(UnsupportedEngineError, match="no engine of it was tested"):
        versions.check_installed(any_version=False)
    versions.logger.addHandler(caplog.handler)
    try:
        versions.check_installed(any_version=True)
    finally:
        versions.logger.removeHandler(caplog.handler)
    assert "the engine starts all the same" in caplog.text


@pytest.mark.parametrize(
    ("version", "changes", "said"),
    [
        ("0.32.0", (), ""),
        ("0.33.0", (), "vLLM 0.33.0: no build of it ran"),
        ("0.32.1", ("Scheduler.a", "B.c", "D.e", "F.g"), "0.32.1 is not the one that was read: Scheduler.a, B.c, D.e"),
    ],
)
def test_a_start_says_what_was_read_only_and_what_is_not_what_was_read(
    version: str,
    changes: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(versions, "vllm_version", lambda: version)
    monkeypatch.setattr(versions, "_installed_differs", lambda **_: ((), changes))
    versions.logger.addHandler(caplog.handler)
    try:
        versions.check_installed(any_version=False)
    finally:
        versions.logger.removeHandler(caplog.handler)
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)


def test_the_installed_version_fits() -> None:
    versions.check_installed(any_version=False)
