"""What follows from an error: the record at fault is lost, the others are sent again."""

from __future__ import annotations

import pytest
from kafka import errors

from kvevents_kafka.refusals import LASTING_ERRORS, RECORD_ERRORS, TOO_LARGE, judge, snake


def test_the_names_are_the_clients_own() -> None:
    """Every error this module knows by name exists in the client."""
    for name in {*LASTING_ERRORS, *RECORD_ERRORS, *TOO_LARGE}:
        assert issubclass(getattr(errors, name), errors.KafkaError), name


def test_a_size_costs_the_record_at_once() -> None:
    """The client has divided the group by then: the record itself is too large."""
    for error in (errors.MessageSizeTooLargeError(), errors.RecordListTooLargeError()):
        verdict = judge(error, "t", was_alone=False, tries=1)
        assert verdict.rejected == "too_large"
        assert not verdict.lasting


@pytest.mark.parametrize("name", sorted(RECORD_ERRORS))
def test_a_record_error_of_a_group_is_looked_for_one_by_one(name: str) -> None:
    """Among many it is not known whose fault it is; alone it is."""
    error = getattr(errors, name)("why")
    among_many = judge(error, "t", was_alone=False, tries=1)
    assert among_many.rejected is None
    assert among_many.alone
    alone = judge(error, "t", was_alone=True, tries=1)
    assert alone.rejected == snake(name)
    assert not alone.alone


@pytest.mark.parametrize("name", sorted(LASTING_ERRORS))
@pytest.mark.parametrize("tries", [1, 5])
def test_a_lasting_error_costs_no_record(name: str, tries: int) -> None:
    """Permissions come back: nothing is rejected, the next try waits, the cause is named."""
    verdict = judge(getattr(errors, name)(), "kv", was_alone=True, tries=tries)
    assert verdict.rejected is None
    assert verdict.lasting
    assert name.removesuffix("Error") in verdict.text


@pytest.mark.parametrize(
    "error",
    [
        errors.KafkaTimeoutError("expired"),
        errors.OutOfOrderSequenceNumberError(),
        errors.IllegalStateError("closed"),
        errors.KafkaConnectionError("gone"),
    ],
    ids=repr,
)
def test_other_errors_mean_sending_again(error: Exception) -> None:
    """Whatever else ends a producer, everything unconfirmed is sent again."""
    verdict = judge(error, "t", was_alone=False, tries=1)
    assert verdict.rejected is None
    assert not verdict.lasting
    assert verdict.text


def test_an_unknown_error_does_not_hold_up_the_stream_for_ever() -> None:
    """An error nobody foresaw: tried again, then alone, then that record is given up."""
    error = errors.UnknownError("odd")
    error.retriable = False
    assert judge(error, "t", was_alone=False, tries=1).rejected is None
    assert judge(error, "t", was_alone=False, tries=2).alone
    assert judge(error, "t", was_alone=True, tries=2).rejected is None
    assert judge(error, "t", was_alone=True, tries=3).rejected == "unknown"


def test_the_text_is_one_line() -> None:
    """What an operator reads is one line of bounded length."""
    text = judge(errors.KafkaTimeoutError("a\nb " * 200), "t", was_alone=False, tries=1).text
    assert "\n" not in text
    assert len(text) <= 200
