"""A third party's backend for kvevents: one file per publisher, one line per record.

Written with public names only. The file's name holds the process, so that two publishers of one
stream show as two files. It has no reader.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from kvevents_core import (
    CONTRACT_VERSION,
    Backend,
    BackendSettings,
    Capabilities,
    ConfigError,
    ReaderOptions,
    Record,
    Sink,
    SinkStatus,
    Source,
    StreamId,
    hookimpl,
)


class LedgerSettings(BackendSettings):
    """Where the files go."""

    ledger_folder: Path


class LedgerSink(Sink):
    """Writes each record as one line: stream rank, epoch, seq, payload in hexadecimal digits."""

    def __init__(self, settings: LedgerSettings, stream: StreamId) -> None:
        path = settings.ledger_folder / f"rank{stream.rank}-pid{os.getpid()}.jsonl"
        self._file = path.open("a", buffering=1)

    def status(self) -> SinkStatus:
        """Always ready."""
        return SinkStatus(ready=True, connected=True)

    def send(self, records: Sequence[Record]) -> int:
        """Write all of them."""
        for record in records:
            facts = {
                "stream": str(record.stream),
                "epoch": record.epoch,
                "seq": record.seq,
                "payload": record.payload.hex(),
            }
            self._file.write(json.dumps(facts) + "\n")
        return len(records)

    def close(self, timeout_s: float) -> None:
        """Close the file."""
        self._file.close()


class LedgerBackend(Backend[LedgerSettings]):
    """The plugin."""

    name: ClassVar[str] = "ledger"
    contract_version: ClassVar[int] = CONTRACT_VERSION
    capabilities: ClassVar[Capabilities] = Capabilities()
    settings_model: ClassVar[type[BackendSettings]] = LedgerSettings

    def open_sink(self, settings: LedgerSettings, stream: StreamId) -> Sink:
        """Open this publisher's file."""
        return LedgerSink(settings, stream)

    def open_source(self, settings: LedgerSettings, reader: ReaderOptions) -> Source:
        """There is none."""
        raise ConfigError("the ledger has no reader; read its files", key="publisher")


@hookimpl
def kvevents_backend() -> LedgerBackend:
    """Return the backend."""
    return LedgerBackend()
