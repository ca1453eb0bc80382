"""Keep libzmq's threads from taking the processor of the thread that feeds them.

Sending to a socket whose I/O thread sleeps wakes that thread, and on a crowded machine it then runs
*instead of* the sender, which holds the interpreter lock: so the engine's thread waits for both. With
the policy SCHED_BATCH (sched(7), Linux 2.6.16) a thread that wakes up preempts nobody: it waits for a
processor that is free, or for its turn. It needs no privilege and takes nothing from a thread's share.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

import zmq


def let_others_finish(context: zmq.Context[Any]) -> None:
    """Have the threads of ``context`` preempt nobody when they wake up, where the system can do it.

    Before its first socket, which starts them. An operator who gave the engine another policy than
    the default keeps it.
    """
    if _may_be_batch():
        context.set(zmq.THREAD_SCHED_POLICY, os.SCHED_BATCH)


def _may_be_batch() -> bool:
    """Try it on a thread that ends at once: libzmq 4.3.5 aborts the process where it is refused."""
    allowed: list[bool] = []

    def attempt() -> None:
        # OSError: a sandbox refuses, or a C library has no such call; AttributeError: not Linux.
        with contextlib.suppress(OSError, AttributeError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
                allowed.append(True)

    probe = threading.Thread(target=attempt, name="kvevents-zmq-policy", daemon=True)
    probe.start()
    probe.join()
    return bool(allowed)
