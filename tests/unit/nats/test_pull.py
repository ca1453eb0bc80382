"""Where a delivered message stands, from the subject it is to be acknowledged on."""

from __future__ import annotations

import pytest

from kvevents_nats.pull import _delivery


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.kv-events.kvevents-ab.1.901.17.1796129581892000000.3",
        "$JS.ACK.hub.ACCHASH.kv-events.kvevents-ab.1.901.17.1796129581892000000.3.rnd",
        "$JS.ACK._.ACCHASH.kv-events.kvevents-ab.1.901.17.1796129581892000000.3",
    ],
)
def test_both_forms_of_the_acknowledgement_subject_are_read(reply: str) -> None:
    """With and without domain and account (nats-server ADR-15)."""
    assert _delivery(reply) == ("kvevents-ab", 901, 17)
