"""What the two processes tell each other beside the batches, on a connection of their own.

The engine's process sends one ``Job`` and at the end how many seconds are left. The sender process
answers with an error or nothing, and then sends reports; what it logs goes the same way, so that it
appears in the engine's log. The first byte of what it sends says what it is. Pickle: both ends are one installation, and
nobody else has the connection, which is a socket pair without a name.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kvevents_core.errors import ConfigError
from kvevents_core.naming import StreamId
from kvevents_core.sending import SendingFacts
from kvevents_core.settings import KVEventsConfig

ANSWER: Final = b"A"
REPORT: Final = b"R"
LOG: Final = b"L"


@dataclass(frozen=True, slots=True)
class Job:
    """What a sender process needs to know."""

    config: KVEventsConfig
    stream: StreamId
    parent: int
    """Process id of the engine's process."""
    log_level: int
    """Below this level nothing need be logged."""
    epoch_floor: int = 0
    """The epoch of a process before this one; a new one is above it, whatever the clock says."""


class Report(msgspec.Struct, frozen=True):
    """How things stand in the sender process."""

    facts: SendingFacts
    numbered_batches: int
    """Of the batches handed over, how many the sender has numbered, and so counts itself."""
    max_message_bytes: int | None
    sink: dict[str, Any]
    """What the sink tells of itself."""

    def without_what_a_sink_said(self, fault: str) -> Report:
        """Return the same with ``fault`` in the place of everything that a package made up."""
        by = self.facts.superseded_by
        facts = msgspec.structs.replace(
            self.facts,
            connected=bool(self.facts.connected),
            superseded_by=by if isinstance(by, int) else None,
            error=fault,
        )
        return msgspec.structs.replace(self, facts=facts, sink={"fault": fault})


class LogLine(msgspec.Struct, frozen=True):
    """One line of the log."""

    logger: str
    level: int
    text: str


_encode_report = msgspec.json.Encoder(enc_hook=repr).encode
_decode_report = msgspec.json.Decoder(Report).decode


def pack_job(job: Job) -> bytes:
    """Return ``job`` as bytes.

    Raises:
        ConfigError: The backend's settings, or the backend, cannot go to another process.
    """
    try:
        packed = pickle.dumps(job)
        pickle.loads(packed)  # noqa: S301 - our own bytes
    except Exception as error:
        raise ConfigError(
            f"publisher {job.config.publisher!r} cannot run in a process of its own: its settings "
            f'do not pickle ({error}); leave "sender" at "thread"',
            key="sender",
            origin=job.config.origin_of("sender"),
        ) from error
    return packed


def unpack_job(data: bytes) -> Job:
    """Return the job that ``pack_job`` packed."""
    job = pickle.loads(data)  # noqa: S301 - of the process that started this one
    assert isinstance(job, Job)
    return job


def pack_report(report: Report) -> bytes:
    """Return ``report`` as bytes."""
    return REPORT + _encode_report(report)


def unpack_report(data: bytes) -> Report:
    """Return the report that ``pack_report`` packed."""
    return _decode_report(data[1:])


def pack_log(line: LogLine) -> bytes:
    """Return ``line`` as bytes."""
    return LOG + msgspec.json.encode(line)


def unpack_log(data: bytes) -> LogLine:
    """Return the line that ``pack_log`` packed."""
    return msgspec.json.decode(data[1:], type=LogLine)


def pack_failure(error: BaseException) -> bytes:
    """Return why opening failed; an error that does not pickle travels as its text."""
    text = RuntimeError(f"{type(error).__name__}: {error}")
    for form in (error, (type(error), error.args, error.__dict__), text):
        try:
            packed = pickle.dumps(form)
            _failure_of(pickle.loads(packed))  # noqa: S301 - our own bytes
        except Exception:  # noqa: S112 - the next form loses less than nothing
            continue
        return ANSWER + packed
    raise AssertionError("text pickles")


def unpack_failure(data: bytes) -> BaseException:
    """Return the error that ``pack_failure`` packed, of its own class and with its attributes."""
    return _failure_of(pickle.loads(data[1:]))  # noqa: S301 - of our own sender process


def _failure_of(form: Any) -> BaseException:
    if isinstance(form, BaseException):
        return form
    # Not by calling the class: some errors of ours need their facts by keyword.
    kind, args, state = form
    error: BaseException = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
