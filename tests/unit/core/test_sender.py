"""The sender's step: numbering, holes, prefix sends, receipts, rebuilds, the epoch rule."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence

import pytest
from fake_sink import Line
from waiting import wait_until

from kvevents_core.backend import Receipt, Record
from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch


def batch(number: int, events: int = 1) -> KVEventBatch:
    return KVEventBatch(float(number), [BlockRemoved([number + (1 << 40)])] * events)


def test_an_epoch_opens_with_one_all_blocks_cleared_as_seq_0() -> None:
    """C15: readers see that the stream lives, and forget what a former life said."""
    line = Line()
    line.step()
    assert line.sink.seqs == [0]
    assert line.sink.events(0) == [AllBlocksCleared()]


def test_nothing_is_numbered_before_the_epoch_is_known() -> None:
    """Until the sink is ready batches wait in the outbox; then the epoch is above the log's."""
    line = Line(now_ms=1_000)
    line.sink.become(ready=False)
    line.outbox.put(batch(1))
    line.step()
    assert line.sink.sent == []
    line.sink.become(ready=True, last_epoch=5_000)
    line.step()
    assert [(r.epoch, r.seq) for r in line.sink.sent] == [(5_001, 0), (5_001, 1)]


def test_the_clock_names_the_epoch_when_the_log_is_empty_or_older() -> None:
    """Unix milliseconds, unless the log already holds a later life."""
    for last, expected in ((None, 1_000), (999, 1_000), (1_000, 1_001)):
        line = Line(now_ms=1_000)
        line.sink.become(last_epoch=last)
        line.step()
        assert line.numbering.epoch == expected


def test_a_lost_batch_takes_its_number_exactly_where_it_was_lost() -> None:
    """C16: three batches lost between two sent ones are three missing numbers between them."""
    line = Line(capacity=2)
    line.step()
    for number in range(5):
        line.outbox.put(batch(number))
    line.step()
    line.outbox.put(batch(5))
    line.step()
    kept = [(r.seq, line.sink.events(i)) for i, r in enumerate(line.sink.sent)][1:]
    assert [seq for seq, _ in kept] == [1, 2, 6]


def test_a_loss_at_the_tail_is_shown_at_once_by_an_empty_batch() -> None:
    """C16: when nothing follows, an empty batch shows the hole."""
    line = Line(capacity=1)
    line.step()
    line.outbox.put(batch(0))
    line.outbox.put(batch(1))
    line.step()
    line.step()
    assert line.sink.seqs == [0, 1, 3]
    assert line.sink.events(2) == []


def test_what_the_sink_did_not_take_is_offered_again_before_anything_newer() -> None:
    """C17: a prefix send keeps the rest, in order, and later batches wait in the outbox."""
    line = Line()
    line.step()
    line.sink.room = 1
    for number in range(3):
        line.outbox.put(batch(number))
    line.step()
    assert line.sink.seqs == [0, 1]
    line.outbox.put(batch(3))
    line.sink.room = 1
    line.step()
    assert line.sink.seqs == [0, 1, 2]
    assert line.outbox.size()[0] == 1
    line.sink.room = None
    line.step()
    line.step()
    assert line.sink.seqs == [0, 1, 2, 3, 4]


def test_counted_as_published_only_when_confirmed() -> None:
    """C14: taken by the client is not delivered; a receipt is."""
    line = Line(confirms=True)
    line.outbox.put(batch(0, events=3))
    line.step()
    assert line.counters.published_batches == 0
    line.sink.receipts.append(Receipt(0, 1))
    line.step()
    assert (line.counters.published_batches, line.counters.published_events) == (2, 4)
    assert line.in_flight.is_empty()


def test_the_window_bounds_what_waits_for_receipts() -> None:
    """No client's unbounded buffer is filled: core stops offering at its own bound."""
    line = Line(confirms=True, window=3)
    for number in range(10):
        line.outbox.put(batch(number))
    line.step()
    line.step()
    assert line.sink.seqs == [0, 1, 2]
    line.sink.receipts.append(Receipt(0, 1))
    line.step()
    assert line.sink.seqs == [0, 1, 2, 3, 4]


def test_a_record_above_the_byte_window_still_leaves_alone() -> None:
    """A batch larger than the window is sent by itself rather than never."""
    line = Line(confirms=True, window_bytes=10)
    line.step()
    assert line.sink.seqs == [0]
    line.outbox.put(batch(0))
    line.step()
    assert line.sink.seqs == [0]
    line.sink.receipts.append(Receipt(0, 0))
    line.step()
    assert line.sink.seqs == [0, 1]


def test_after_a_rebuild_everything_unconfirmed_goes_again_first_and_in_order() -> None:
    """C18: generation raised: unconfirmed records, then what was waiting, then new ones."""
    line = Line(confirms=True)
    for number in range(3):
        line.outbox.put(batch(number))
    line.step()
    line.sink.receipts.append(Receipt(0, 1))
    line.sink.become(generation=1)
    line.sink.room = 1
    line.outbox.put(batch(3))
    line.step()
    line.sink.room = None
    line.step()
    line.step()
    assert line.sink.seqs == [0, 1, 2, 3, 2, 3, 4]


def test_receipts_that_came_with_the_rebuild_save_the_resend() -> None:
    """Receipts are read before unconfirmed records are taken back."""
    line = Line(confirms=True)
    line.step()
    line.sink.receipts.append(Receipt(0, 0))
    line.sink.become(generation=1)
    line.step()
    assert line.sink.seqs == [0]


def test_a_rejected_record_is_counted_and_shown() -> None:
    """C16: what the transport refuses for good is a counted hole, visible even at the tail."""
    line = Line(confirms=True)
    line.outbox.put(batch(0, events=2))
    line.step()
    line.sink.receipts += [Receipt(0, 0), Receipt(1, 1, "too_large")]
    line.step()
    assert line.counters.lost == {"rejected": 1}
    assert line.counters.lost_events == {"rejected": 2}
    assert line.sink.seqs == [0, 1, 2]
    assert line.sink.events(2) == []


def test_a_transport_that_rejects_everything_is_not_flooded_with_empty_batches() -> None:
    """The batch that shows a hole is refused too: the next try waits."""
    line = Line(confirms=True)
    line.step()
    for _ in range(50):
        seq = line.sink.seqs[-1]
        line.sink.receipts.append(Receipt(seq, seq, "not_authorized"))
        line.step()
    assert len(line.sink.sent) <= 3


def test_a_receipt_for_a_huge_or_unknown_range_is_harmless() -> None:
    """Only what is waiting is settled, whatever a sink claims."""
    line = Line(confirms=True)
    line.step()
    line.sink.receipts += [Receipt(7, 9), Receipt(0, 1 << 60), Receipt(0, 0)]
    line.step()
    assert line.counters.published_batches == 1


def test_an_event_that_cannot_be_encoded_costs_that_event_and_shows() -> None:
    """C16: the rest of the batch is sent, and a hole after it tells that something is missing."""
    line = Line()
    bad = BlockStored(block_hashes=[1 << 40], token_ids=[object()])
    line.outbox.put(KVEventBatch(1.0, [bad, BlockRemoved([1 << 41])]))
    line.outbox.put(batch(2))
    line.step()
    assert line.counters.lost_events == {"encode": 1}
    assert line.counters.lost == {"encode": 1}
    assert line.sink.seqs == [0, 1, 3]
    assert line.sink.events(1) == [BlockRemoved([1 << 41])]


def test_a_batch_above_the_limit_is_split_and_each_part_has_its_number() -> None:
    """Parts are consecutive; no part exceeds the limit; all events arrive."""
    line = Line()
    line.step()
    line.sink.become(max_message_bytes=120)
    line.outbox.put(batch(1, events=10))
    line.step()
    assert line.sink.seqs == list(range(len(line.sink.sent)))
    assert len(line.sink.sent) > 2
    assert all(len(record.payload) <= 120 for record in line.sink.sent)
    assert sum(len(line.sink.events(i)) for i in range(1, len(line.sink.sent))) == 10


def test_an_event_that_cannot_be_split_is_a_counted_hole_and_the_next_batch_goes() -> None:
    """too_large costs that event; what follows is sent."""
    line = Line()
    line.step()
    line.sink.become(max_message_bytes=100)
    uncuttable = BlockStored(block_hashes=[1 << 40], token_ids=list(range(1000)), block_size=0)
    line.outbox.put(KVEventBatch(1.0, [uncuttable]))
    line.outbox.put(batch(2))
    line.step()
    assert line.counters.lost == {"too_large": 1}
    assert line.sink.seqs == [0, 2]


def test_a_superseded_publisher_stops_says_so_once_and_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C19: a higher epoch on our stream: nothing more is sent, one error line, counted drops."""
    line = Line(confirms=True)
    line.step()
    line.sink.become(superseded_by=9_999)
    with caplog.at_level(logging.ERROR, "kvevents"):
        for number in range(3):
            line.outbox.put(batch(number))
            line.step()
    assert line.sink.seqs == [0]
    assert line.counters.lost == {"superseded": 4}
    assert len([r for r in caplog.records if "newer publisher" in r.message]) == 1


def test_heartbeats_come_when_nothing_else_does() -> None:
    """An empty batch under the next number after heartbeat_s without a record; none with."""
    line = Line(heartbeat_s=0.02)
    line.step()
    wait_until(lambda: line.step() or len(line.sink.sent) > 1)
    assert line.sink.seqs == [0, 1]
    assert line.sink.events(1) == []


def test_no_heartbeat_piles_up_behind_a_stalled_sink() -> None:
    """While records wait for room, no heartbeat is added."""
    line = Line(heartbeat_s=0.0001)
    line.sink.room = 0
    for _ in range(20):
        line.step()
    assert line.in_flight.size()[0] == 1


def test_the_thread_survives_whatever_the_sink_raises() -> None:
    """C20: an exception is counted, and sending goes on when the sink recovers."""
    line = Line()
    line.sink.raises = RuntimeError("planted")
    logging.getLogger("kvevents").disabled = True
    try:
        line.sender.start()
        wait_until(lambda: line.counters.sender_errors >= 3)
        line.sink.raises = None
        line.outbox.put(batch(0))
        wait_until(lambda: line.sink.seqs == [0, 1])
    finally:
        logging.getLogger("kvevents").disabled = False
        assert line.sender.stop(1.0)


def test_stop_sends_what_waits_and_closes_the_sink() -> None:
    """Within the deadline everything leaves; the sink is closed on the sender's thread."""
    line = Line()
    line.sender.start()
    for number in range(100):
        line.outbox.put(batch(number))
    assert line.sender.stop(5.0)
    assert line.sink.seqs == list(range(101))
    assert line.sink.closed
    assert not line.sender.is_alive()


def test_stop_with_a_stalled_sink_keeps_its_deadline_and_counts() -> None:
    """C6: nothing can be sent: the thread ends all the same, and every batch is accounted for."""
    line = Line()
    line.sink.room = 0
    line.sender.start()
    for number in range(5):
        line.outbox.put(batch(number))
    assert line.sender.stop(0.2)
    assert line.counters.lost["unsent_at_close"] == 6


def test_unconfirmed_at_close_is_counted_apart() -> None:
    """Sent and never confirmed is neither delivered nor unsent."""
    line = Line(confirms=True)
    line.sender.start()
    line.outbox.put(batch(0))
    wait_until(lambda: len(line.sink.sent) == 2)
    assert line.sender.stop(0.1)
    assert line.counters.lost == {"unconfirmed_at_close": 2}


@pytest.mark.parametrize("confirms", [False, True])
def test_numbers_add_up(confirms: bool) -> None:
    """C16: published plus lost batches equals the numbers given, once all has settled."""
    line = Line(confirms=confirms, capacity=3)
    for number in range(20):
        line.outbox.put(batch(number))
        if number % 4 == 0:
            line.step()
        if confirms and line.sink.sent:
            seq = line.sink.seqs[-1]
            refused = "too_large" if number % 8 == 0 else None
            line.sink.receipts += [Receipt(0, seq - 1), Receipt(seq, seq, refused)]
    for _ in range(4):
        line.step()
        line.sink.receipts.append(Receipt(0, line.numbering.next_seq))
    line.step()
    lost = sum(line.counters.lost.values()) + line.outbox.lost["overflow"]
    assert line.counters.published_batches + lost == line.numbering.next_seq


def test_a_batch_that_breaks_the_encoder_costs_itself_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C20: the batches taken from the outbox together with it are sent, behind a counted hole."""
    line = Line()
    encode = line.numbering._encoder.encode

    def planted(each: KVEventBatch) -> bytes:
        if each.ts == 1.0:
            raise RuntimeError("planted")
        return encode(each)

    monkeypatch.setattr(line.numbering._encoder, "encode", planted)
    for number in range(4):
        line.outbox.put(batch(number))
    logging.getLogger("kvevents").disabled = True
    try:
        line.step()
    finally:
        logging.getLogger("kvevents").disabled = False
    assert line.sink.seqs == [0, 1, 3, 4]
    assert line.counters.lost == {"encode": 1}
    assert line.counters.sender_errors == 1


def test_not_even_an_exit_ends_the_thread() -> None:
    """SystemExit out of a client library is survived like any error (ai-dynamo/dynamo#11783)."""
    line = Line()
    line.sink.raises = SystemExit(1)
    logging.getLogger("kvevents").disabled = True
    try:
        line.sender.start()
        wait_until(lambda: line.counters.sender_errors >= 2)
        line.sink.raises = None
        line.outbox.put(batch(0))
        wait_until(lambda: line.sink.seqs == [0, 1])
    finally:
        logging.getLogger("kvevents").disabled = False
        assert line.sender.stop(1.0)


def test_a_transport_that_refuses_everything_does_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every refusal is counted; the log has the first one and a report from time to time."""
    line = Line(confirms=True)
    with caplog.at_level(logging.WARNING, "kvevents"):
        for number in range(200):
            line.outbox.put(batch(number))
            line.step()
            seq = line.sink.seqs[-1]
            line.sink.receipts.append(Receipt(seq, seq, "not_authorized"))
            line.step()
    assert line.counters.lost["rejected"] >= 200
    assert 1 <= len(caplog.records) <= 3


def test_the_engines_thread_never_encodes_or_sends() -> None:
    """Encoding, numbering and sending happen on one thread, which is not the engine's."""
    line = Line()
    threads: set[tuple[str, int]] = set()
    encode, send = line.numbering._encoder.encode, line.sink.send

    def watched_encode(each: KVEventBatch) -> bytes:
        threads.add(("encode", threading.get_ident()))
        return encode(each)

    def watched_send(records: Sequence[Record]) -> int:
        threads.add(("send", threading.get_ident()))
        return send(records)

    line.numbering._encoder.encode = watched_encode
    line.sink.send = watched_send
    line.sender.start()
    line.outbox.put(batch(0))
    wait_until(lambda: len(line.sink.sent) == 2)
    line.sender.stop(1.0)
    assert {what for what, _ in threads} == {"encode", "send"}
    assert {ident for _, ident in threads} == {line.sender._thread.ident}
    assert line.sender._thread.ident != threading.get_ident()


def test_signals_are_the_engines() -> None:
    """No signal that can wait interrupts a client's call; the engine's own thread takes them."""
    line = Line()
    blocked: set[int] = set()
    send = line.sink.send

    def watched_send(records: Sequence[Record]) -> int:
        blocked.update(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return send(records)

    line.sink.send = watched_send
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    line.sender.start()
    wait_until(lambda: bool(line.sink.sent))
    line.sender.stop(1.0)
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGPROF} <= blocked
    assert signal.SIGSEGV not in blocked
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
