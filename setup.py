"""Compiles what every relayed request passes through, when asked to; everything else is in pyproject.toml.

With SPECPILOT_COMPILE=1 the modules below become C by mypyc: the same source, checked by the same type checker, in half
the CPU time. Without it the distribution is plain Python, which is what an editable checkout should be: a compiled
module would hide the source that somebody just changed.

What is made for every request or event is a plain class there, not a dataclass: the initialiser that `dataclass` writes
stays interpreted, and takes more time than the rest of the value's life.
"""

import os

from setuptools import setup

HOT_PATH = (
    "gateway/admission.py",
    "gateway/affinity.py",
    "gateway/choice.py",
    "gateway/classify.py",
    "gateway/delivery.py",
    "gateway/exchange.py",
    "gateway/fair_queue.py",
    "gateway/fleet.py",
    "gateway/framing.py",
    "gateway/front.py",
    "gateway/heads.py",
    "gateway/intake.py",
    "gateway/leg.py",
    "gateway/limits.py",
    "gateway/metrics.py",
    "gateway/plane.py",
    "gateway/prefix.py",
    "gateway/rate.py",
    "gateway/record.py",
    "gateway/relay.py",
    "gateway/routing.py",
    "gateway/sse.py",
    "gateway/upstream.py",
    "gateway/wire.py",
    "policy/clock.py",
)

modules = []
if os.environ.get("SPECPILOT_COMPILE") == "1":
    from mypyc.build import mypycify

    modules = mypycify([*HOT_PATH], opt_level="3", strict_dunder_typing=True)
setup(ext_modules=modules)
