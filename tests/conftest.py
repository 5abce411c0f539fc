"""For all tests: examples have no deadlines, which would judge the machine, because other processes take the cores."""

from hypothesis import settings

settings.register_profile("no deadlines", deadline=None)
settings.load_profile("no deadlines")
