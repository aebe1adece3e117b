"""What holds for every test: no example is judged by how long it takes, which says more of the machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
