"""The kit itself: each planted fault breaks the promise it was planted under, and no other."""

from __future__ import annotations

import pytest
from contract.faults.planting import Fault, planted
from contract.kit_run import broken_promises

from kvevents_core.testing import BackendConformance
from kvevents_core.testing.plugin import promise_of


def _tests_of(promise: str) -> type:
    """Return the kit without the tests that do not cite ``promise``."""
    others = {
        name: None
        for name in dir(BackendConformance)
        if name.startswith("test_")
        and promise_of(getattr(BackendConformance, name).__doc__) != promise
    }
    return type("Chosen", (BackendConformance,), others)


@pytest.mark.parametrize("fault", planted(), ids=str)
def test_a_fault_breaks_its_promise(fault: Fault) -> None:
    """A backend that breaks a promise fails a test that cites it."""
    broken = broken_promises(fault.backend, fault.make_place, kit=_tests_of(fault.promise))
    assert broken, f"nothing noticed that a backend {fault.what}"


@pytest.mark.slow
@pytest.mark.parametrize("fault", planted(), ids=str)
def test_a_fault_breaks_no_other_promise(fault: Fault) -> None:
    """So the number that fails leads to the sentence that is broken, and not to ten others."""
    broken = broken_promises(fault.backend, fault.make_place)
    assert {name.split()[0] for name in broken} == {fault.promise}, broken
