"""The one class a backend's author adopts; what it tests stands in ``docs/reference/contract.md``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvevents_core.backend import Backend
from kvevents_core.testing.closing import ClosingPromises
from kvevents_core.testing.confirmation import ConfirmationPromises
from kvevents_core.testing.delivery import DeliveryPromises
from kvevents_core.testing.opening import OpeningPromises
from kvevents_core.testing.outage import OutagePromises
from kvevents_core.testing.ownership import OwnershipPromises
from kvevents_core.testing.place import Place
from kvevents_core.testing.process import ProcessPromises
from kvevents_core.testing.reading import ReadingPromises
from kvevents_core.testing.rig import Rig


class Adopted:
    """What every group of promises needs: a backend and a fresh place for each test."""

    backend: Backend[Any]
    """The backend under test."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        """Override: yield a fresh ``Place`` for each test."""
        raise LookupError(f"{type(self).__name__} must define the fixture `place`")

    @pytest.fixture
    def rig(self, place: Place) -> Iterator[Rig]:
        """Backend and place together; closes whatever the test opened. Not to be overridden."""
        rig = Rig(self.backend, place)
        try:
            yield rig
        finally:
            rig.close()


class BackendConformance(
    Adopted,
    DeliveryPromises,
    ClosingPromises,
    OpeningPromises,
    OutagePromises,
    ConfirmationPromises,
    OwnershipPromises,
    ReadingPromises,
    ProcessPromises,
):
    """Every promise of the contract that a backend must keep, one test each at least.

    Subclass it in a test module, name the backend, and give the fixture ``place``. What the
    backend does not claim (``Capabilities``) or the place cannot do is skipped with the reason.
    Do not override a test: a backend that cannot keep a promise does not keep the contract.
    """
