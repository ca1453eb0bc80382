"""What every test relies on."""

from __future__ import annotations

import signal

import pytest
from senders import VARIABLE

# Whichever test module comes first: some import the kit before others ask for it as a plugin.
pytest.register_assert_rewrite("kvevents_core.testing")

# A test run started in the background of a shell is deaf to SIGINT, and so would be the programs that
# tests start and interrupt. With a handler in place here they get the default back.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["thread", "process"])
def each_sender(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give publishers that say nothing of it a sender thread, then a sender process."""
    monkeypatch.setenv(VARIABLE, request.param)
    return str(request.param)
