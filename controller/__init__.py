"""The controller: publishes each engine's guidance, measures the gain of adaptive K, and serves the admin API.

It does not choose K in normal operation; the engines do (`specpilot.engine_adapter`). Where to read on:

- the loop: `loop`; what a tick decides for one pool: `law.tick`;
- the measured gain and the fall back to the static K: `law.control_group`; canaries: `experiments`;
- questions to engines, for `explain` and forecasts: `admin.asking`;
- what operators may do: `admin`, and the commands: `cli`.
"""
