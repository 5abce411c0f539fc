"""How long tests wait for what must come."""

PATIENCE_S = 60.0
"""Seconds to wait for a state that must come. Only a failure takes them: no test measures how fast this machine is,
and one whose cores others use too may stand still for seconds."""
