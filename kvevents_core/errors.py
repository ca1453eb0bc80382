"""Every error kvevents raises on purpose: the facts are attributes, the advice is in the text.

Nothing here is ever raised by ``EventPublisher.publish``: after construction the engine's thread
sees counters and log lines, not exceptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class KVEventsError(Exception):
    """Base of every error that kvevents raises on purpose."""


class ConfigError(KVEventsError, ValueError):
    """The configuration is wrong; the engine must not start with it.

    Args:
        message: What happened, what was expected and what to do, in one line.
        key: The configuration key at fault, as the operator types it, or None.
        origin: Where the value came from: ``--kv-events-config``, ``environment variable X``,
            ``secret file F``, ``file F``, or None when no single origin is at fault.
        suggestion: The nearest known name, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        origin: str | None = None,
        suggestion: str | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.origin = origin
        self.suggestion = suggestion


class LayoutError(KVEventsError, ValueError):
    """A parallel layout or placement is impossible; the message gives the arithmetic."""


class BackendError(KVEventsError, LookupError):
    """A backend cannot be found, loaded or used.

    Args:
        message: Name, cause and remedy, in one line.
        name: The ``publisher`` value asked for.
        distribution: The distribution that provides the entry point, or None if none does.
        known: Names that are installed, sorted.
        suggestion: The nearest installed name, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        name: str,
        distribution: str | None = None,
        known: Sequence[str] = (),
        suggestion: str | None = None,
    ) -> None:
        super().__init__(message)
        self.name = name
        self.distribution = distribution
        self.known = tuple(known)
        self.suggestion = suggestion


class TransportError(KVEventsError, OSError):
    """A transport could not do what was asked; ``address`` says where."""

    def __init__(self, message: str, *, address: str | None = None) -> None:
        super().__init__(message)
        self.address = address


class AddressInUseError(TransportError):
    """Another publisher already owns the address of this stream."""


class ClosedError(KVEventsError, RuntimeError):
    """A sink, source or subscription was used after it was closed."""


class EncodeError(KVEventsError, ValueError):
    """A batch or event cannot be put on the wire."""


class DecodeError(KVEventsError, ValueError):
    """Bytes are not a batch in any dialect we know; the only error the decoder raises."""
