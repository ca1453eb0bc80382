"""One profile for hypothesis: a slow machine is no failure of a property."""

from hypothesis import settings

settings.register_profile("kvevents", deadline=None)
settings.load_profile("kvevents")
