"""What the operating system says this process holds, with the sender process it may have started.

Two processes that publish one stream may report the same port or the same rank, so the demo's
verdict does not take kvevents' own word for who is silent. Reads Linux's ``/proc`` (proc(5)); where
there is none, every answer is None.
"""

from __future__ import annotations

import contextlib
import ipaddress
import sys
from pathlib import Path
from typing import Final

_LISTEN: Final = "0A"
"""Socket state in ``/proc/net/tcp``: TCP_LISTEN (Linux ``include/net/tcp_states.h``)."""


def count_threads() -> int | None:
    """Return the number of operating-system threads, those of C libraries included."""
    try:
        return sum(1 for process in _family() for _ in (process / "task").iterdir())
    except OSError:
        return None


def socket_inodes() -> set[str] | None:
    """Return the inodes of the sockets that these processes hold open."""
    try:
        descriptors = [each for process in _family() for each in (process / "fd").iterdir()]
    except OSError:
        return None
    inodes = set()
    for descriptor in descriptors:
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    return inodes


def listening_addresses() -> list[str] | None:
    """Return the TCP addresses, ``host:port``, that these processes listen on, sorted."""
    inodes = socket_inodes()
    if inodes is None:
        return None
    found = []
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            rows = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            columns = row.split()
            if columns[3] == _LISTEN and columns[9] in inodes:
                found.append(_address(columns[1]))
    return sorted(found)


def _family() -> list[Path]:
    """Return this process's directory and those of its children, a sender process among them."""
    family = [Path("/proc/self")]
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ended, or a kernel without this file
            children = (task / "children").read_text(encoding="ascii").split()
            family += [Path("/proc", child) for child in children]
    return family


def _address(column: str) -> str:
    """Return ``host:port`` for a column such as ``0100007F:15B3``: native words, then the port."""
    words, port = column.split(":")
    raw = bytes.fromhex(words)
    packed = b"".join(
        raw[at : at + 4][:: -1 if sys.byteorder == "little" else 1] for at in range(0, len(raw), 4)
    )
    host = ipaddress.ip_address(packed)
    return f"[{host}]:{int(port, 16)}" if host.version == 6 else f"{host}:{int(port, 16)}"
