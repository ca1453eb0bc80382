"""The memory backend keeps every promise of the contract that it claims."""

from __future__ import annotations

import pytest
from contract.memory_place import MemoryPlace

from kvevents_core.memory import MemoryBackend
from kvevents_core.testing import BackendConformance

pytest_plugins = ["kvevents_core.testing.plugin"]


class TestMemory(BackendConformance):
    """In-process hubs."""

    backend = MemoryBackend()

    @pytest.fixture
    def place(self) -> MemoryPlace:
        """A hub of the test's own."""
        return MemoryPlace()
