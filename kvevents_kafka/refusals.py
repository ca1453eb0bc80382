"""What follows from an error of a sent record: is that record lost, or is all of it sent again (pure).

One error that kafka-python takes for fatal kills an idempotent producer: that record and every later
one fail alike. So only the first failed record can be at fault; the others are sent again.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

TOO_LARGE: Final = frozenset({"MessageSizeTooLargeError", "RecordListTooLargeError"})
"""kafka-python 3.0 divides a group of records on these until one record is left."""
RECORD_ERRORS: Final = frozenset(
    {
        "CorruptRecordError",
        "InvalidRecordError",
        "InvalidTimestampError",
        "PolicyViolationError",
        "UnsupportedForMessageFormatError",
    }
)
"""Errors that lie in a record; which one of a group is not said."""
LASTING_ERRORS: Final = {
    "TopicAuthorizationFailedError": "not authorized to write to topic {topic!r}: grant an ACL",
    "ClusterAuthorizationFailedError": "not authorized for idempotent writes: grant WRITE on topic {topic!r}",
    "InvalidTopicError": "the brokers refuse the topic name {topic!r}",
    "InvalidRequiredAcksError": "the brokers refuse this setting of acks",
    "UnsupportedCompressionTypeError": "the brokers refuse this compression_type",
    "UnsupportedVersionError": "the brokers are too old for this setting of acks",
    "SaslAuthenticationFailedError": "login refused",
}  # fmt: skip
"""Errors that end when an operator does something, not by themselves."""


class Verdict(NamedTuple):
    """What to do about a failed record."""

    rejected: str | None
    """Reason for which the first failed record is lost, or None: it is sent again."""
    alone: bool
    """Send the next records one by one, until the one at fault shows."""
    lasting: bool
    """Wait before trying again: nothing has changed yet."""
    text: str
    """The trouble in one line."""


def judge(error: BaseException, topic: str, *, was_alone: bool, tries: int) -> Verdict:
    """Return what follows from ``error`` of the first failed record.

    Args:
        error: What its future failed with.
        topic: The topic, for the text.
        was_alone: Whether records are being sent one by one.
        tries: How often this very record was the first to fail.
    """
    name = type(error).__name__
    if name in TOO_LARGE:
        return Verdict("too_large", alone=False, lasting=False, text=_line(error))
    if name in LASTING_ERRORS:
        text = f"{LASTING_ERRORS[name].format(topic=topic)} ({name.removesuffix('Error')})"
        return Verdict(None, alone=was_alone, lasting=True, text=text)
    retriable = bool(getattr(error, "retriable", False)) or name == "IllegalStateError"
    lies_in_record = name in RECORD_ERRORS or (name == "KafkaError" and not was_alone)
    if was_alone and (name in RECORD_ERRORS or (not retriable and tries >= 3)):
        return Verdict(snake(name), alone=False, lasting=False, text=_line(error))
    alone = lies_in_record or (not retriable and tries >= 2)
    return Verdict(None, alone=alone or was_alone, lasting=tries > 1, text=_line(error))


def snake(name: str) -> str:
    """Return the class name ``InvalidRecordError`` as the reason ``invalid_record``."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Error"))
    return words.lower()


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
