"""Turns the records of a source into items, stream by stream: the reader's rules without threads.

Gaps are recovered from history where the transport has it, before anything later is handed out.
The only waiting done here is ``Source.head`` and ``Source.recover``, with deadlines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvevents_core.backend import (
    Arrival,
    Malformed,
    PeersCounted,
    Reconnected,
    Record,
    Trouble,
)
from kvevents_core.errors import DecodeError
from kvevents_core.items import Batch, Conflict, Gap, Item, Restarted, Silent
from kvevents_core.naming import StreamId
from kvevents_core.sequence import StreamSequence, Verdict
from kvevents_core.wire import BatchDecoder

if TYPE_CHECKING:
    from kvevents_core.backend import Capabilities, Source

ASK_TIMEOUT_S: Final = 2.0
"""Longest wait for one answer of a publisher's replay socket."""
COOLDOWN_S: Final = 5.0
"""After a failed recovery a channel is not asked again for so long."""
LIVE_FIRST_S: Final = 0.5
"""How long live traffic may still bring what history no longer holds, before that is a gap."""


@dataclass(slots=True)
class ReaderStats:
    """What one subscription counted so far."""

    batches: int = 0
    events: int = 0
    replayed_batches: int = 0
    duplicates: int = 0
    """Records dropped because they had been handed out before."""
    gaps: int = 0
    lost_batches: int = 0
    """Numbers covered by the gaps."""
    restarts: int = 0
    conflicts: int = 0
    """Records dropped because another publisher owns their stream."""
    undecodable: int = 0
    """Batches that are not in any dialect; each is a gap of its number."""
    skipped_events: int = 0
    """Events of decoded batches that the decoder did not know or could not read."""
    malformed: int = 0
    """Arrivals that were no records at all."""
    troubles: int = 0
    last_trouble: str | None = None
    lag_s: float = 0.0
    """Reader's clock minus the ``ts`` of the last live batch."""


@dataclass(slots=True)
class _Stream:
    stream: StreamId
    sequence: StreamSequence
    channel: int
    heard_at: float
    is_silent: bool = False
    told_conflicts: set[object] = field(default_factory=set)


class StreamReader:
    """The state of one subscription. Used by one thread at a time.

    Args:
        source: Where records come from.
        capabilities: What its transport can do.
        expected: Streams that must be heard from, with the channel of each.
        next_seqs: Where to go on, by stream: (epoch, next seq), as ``position`` returned.
        from_start: Expect each stream from its seq 0; False takes the first record as it comes.
        recover: Whether to fetch what is missing from history.
        silent_after_s: Seconds without a record after which a stream is ``Silent``; 0 = never.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        source: Source,
        capabilities: Capabilities,
        *,
        expected: Mapping[StreamId, int],
        next_seqs: Mapping[StreamId, tuple[int | None, int]],
        from_start: bool,
        recover: bool,
        silent_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._ordered_epochs = capabilities.carries_epoch
        self._replays = capabilities.replays and recover
        self._next_seqs = next_seqs
        self._from_start = from_start
        self._silent_after_s = silent_after_s
        self._clock = clock
        self._decoder = BatchDecoder()
        self._streams: dict[StreamId, _Stream] = {}
        self._peers: dict[int, int] = {}
        self._not_before: dict[int, float] = {}
        self._deferred: dict[StreamId, float] = {}
        self.stats = ReaderStats()
        for stream, channel in expected.items():
            self._state_of(stream, channel)

    def position(self) -> dict[str, tuple[int | None, int]]:
        """Return (epoch, next seq) of each stream heard so far, by the stream's text."""
        return {
            str(s.stream): (s.sequence.epoch, s.sequence.next_seq)
            for s in self._streams.values()
            if s.sequence.next_seq
        }

    def take(self, arrivals: Iterable[Arrival]) -> list[Item]:
        """Return the items that ``arrivals`` amount to, in order."""
        items: list[Item] = []
        for arrival in arrivals:
            match arrival:
                case Record():
                    self._take_record(arrival, items, replayed=False)
                case Reconnected():
                    self._take_reconnect(arrival, items)
                case PeersCounted():
                    self._peers[arrival.channel] = arrival.count
                case Malformed():
                    self.stats.malformed += 1
                    self.stats.last_trouble = arrival.reason
                case Trouble():
                    self.stats.troubles += 1
                    self.stats.last_trouble = arrival.reason
        self._recover_deferred(items)
        return items

    def silences(self) -> list[Item]:
        """Return a ``Silent`` for each stream that just became silent."""
        if self._silent_after_s <= 0:
            return []
        now = self._clock()
        items: list[Item] = []
        for state in self._streams.values():
            quiet_s = now - state.heard_at
            if quiet_s >= self._silent_after_s and not state.is_silent:
                state.is_silent = True
                items.append(Silent(state.stream, quiet_s))
        return items

    # One record --------------------------------------------------------------------------------

    def _take_record(self, record: Record, items: list[Item], *, replayed: bool) -> None:
        try:
            decoded = self._decoder.decode(record.payload)
        except DecodeError as error:
            self.stats.undecodable += 1
            state = self._state_of(record.stream, record.channel)
            if self._admit(state, record, items, replayed=replayed):
                self._add_gap(state, items, record.seq, record.seq, f"undecodable: {error}")
            return
        rank = decoded.batch.dp_rank
        stream = record.stream
        if rank is not None and rank != stream.rank and not self._ordered_epochs:
            # Frames say nothing of the rank, and one socket may carry several.
            stream = StreamId(stream.tenant, stream.model, stream.instance, rank)
        state = self._state_of(stream, record.channel)
        if not self._admit(state, record, items, replayed=replayed):
            return
        batch = decoded.batch
        self.stats.batches += 1
        self.stats.events += len(batch.events)
        self.stats.skipped_events += decoded.skipped_events
        if replayed:
            self.stats.replayed_batches += 1
        elif batch.ts > 0:  # a time stamp that cannot be read is 0
            self.stats.lag_s = time.time() - batch.ts
        items.append(
            Batch(
                stream,
                state.sequence.epoch,
                record.seq,
                batch.ts,
                batch.events,
                decoded.skipped_events,
                replayed,
            )
        )

    def _state_of(self, stream: StreamId, channel: int) -> _Stream:
        state = self._streams.get(stream)
        if state is None:
            known = self._next_seqs.get(stream)
            next_seq = known[1] if known else (0 if self._from_start else None)
            sequence = StreamSequence(ordered_epochs=self._ordered_epochs, next_seq=next_seq)
            sequence.epoch = known[0] if known else None
            state = _Stream(stream, sequence, channel, self._clock())
            self._streams[stream] = state
        return state

    def _admit(self, state: _Stream, record: Record, items: list[Item], *, replayed: bool) -> bool:
        """Decide whether ``record`` is handed out; add what must be said before it."""
        if not replayed:
            self._deferred.pop(state.stream, None)
        state.channel = record.channel
        state.heard_at = self._clock()
        state.is_silent = False
        sequence = state.sequence
        mark = _fingerprint(record.payload)
        verdict = sequence.judge(record.epoch, record.seq, mark)
        if verdict is Verdict.UNCLEAR or (verdict is Verdict.GAP and sequence.reconnected):
            verdict = self._clear_up(state, record, verdict)
        if verdict is Verdict.RESTARTED:
            self._restart(state, record.epoch, items)
            verdict = sequence.judge(record.epoch, record.seq, mark)
        if verdict is Verdict.GAP:
            if not replayed:
                self._recover(state, items, record.seq)
            verdict = sequence.judge(record.epoch, record.seq, mark)
        if verdict is Verdict.GAP:
            first = sequence.next_seq or 0
            self._add_gap(state, items, first, record.seq - 1, "not received and not in history")
            verdict = Verdict.NEXT
        if verdict is Verdict.NEXT:
            sequence.accept(record.epoch, record.seq, mark)
            sequence.reconnected = False
            return True
        self._count_dropped(state, record, items, verdict)
        return False

    def _clear_up(self, state: _Stream, record: Record, verdict: Verdict) -> Verdict:
        """Ask the publisher which life it is in, or infer it from the connection."""
        sequence = state.sequence
        head = self._ask_head(state.channel)
        if head is not None:
            if head != sequence.epoch and sequence.epoch is not None:
                return Verdict.RESTARTED
            if sequence.epoch is not None:
                return Verdict.CONFLICT if verdict is Verdict.UNCLEAR else verdict
        if verdict is Verdict.UNCLEAR and self._peers.get(state.channel, 1) > 1:
            return Verdict.CONFLICT
        return Verdict.RESTARTED

    def _ask_head(self, channel: int) -> int | None:
        if not self._replays:
            return None
        head = self._source.head(channel, ASK_TIMEOUT_S)
        return None if head is None else head.epoch

    def _restart(self, state: _Stream, epoch: int | None, items: list[Item]) -> None:
        previous = state.sequence.epoch
        state.sequence.restart(epoch if epoch is not None else self._ask_head(state.channel))
        state.told_conflicts.clear()
        self.stats.restarts += 1
        items.append(Restarted(state.stream, previous, state.sequence.epoch))

    def _count_dropped(
        self, state: _Stream, record: Record, items: list[Item], verdict: Verdict
    ) -> None:
        if verdict is Verdict.DUPLICATE:
            self.stats.duplicates += 1
            return
        self.stats.conflicts += 1
        told = record.epoch if verdict is Verdict.STALE else "same number"
        if told in state.told_conflicts:
            return
        state.told_conflicts.add(told)
        owner = f"epoch {state.sequence.epoch}"
        detail = (
            f"a publisher of epoch {record.epoch} goes on under a stream owned by {owner}"
            if verdict is Verdict.STALE
            else f"batch {record.seq} came twice with different bytes ({owner}, "
            f"{self._peers.get(state.channel, 1)} publishers connected)"
        )
        items.append(Conflict(state.stream, record.epoch, record.seq, detail))

    def _add_gap(
        self, state: _Stream, items: list[Item], first_seq: int, last_seq: int, reason: str
    ) -> None:
        self.stats.gaps += 1
        self.stats.lost_batches += last_seq - first_seq + 1
        items.append(Gap(state.stream, state.sequence.epoch, first_seq, last_seq, reason))

    # History -----------------------------------------------------------------------------------

    def _take_reconnect(self, notice: Reconnected, items: list[Item]) -> None:
        states = [s for s in self._streams.values() if s.channel == notice.channel]
        for state in states:
            state.sequence.reconnected = not notice.first
        if not self._replays or not self._from_start:
            return
        head = self._source.head(notice.channel, ASK_TIMEOUT_S)
        for state in states:
            sequence = state.sequence
            if head is not None:
                if sequence.epoch is not None and head.epoch != sequence.epoch:
                    self._restart(state, head.epoch, items)
                sequence.epoch = head.epoch
                sequence.reconnected = False
            if head is not None or notice.first:
                self._recover(state, items, None)

    def _recover(
        self, state: _Stream, items: list[Item], until_seq: int | None, *, defers: bool = True
    ) -> None:
        """Hand out what history holds from ``next_seq`` on, up to ``until_seq`` or its end.

        Without ``until_seq`` nothing live has come yet. If history has lost its beginning by then,
        that may still come live, so ``defers`` waits for it a moment.
        """
        if not self._replays or self._clock() < self._not_before.get(state.channel, 0.0):
            return
        next_seq = state.sequence.next_seq or 0
        while until_seq is None or next_seq < until_seq:
            portion = self._source.recover(state.channel, state.stream, next_seq, ASK_TIMEOUT_S)
            if portion is None:
                self._not_before[state.channel] = self._clock() + COOLDOWN_S
                return
            if not portion or portion[-1].seq < next_seq:
                return
            if until_seq is None and defers and portion[0].seq > next_seq:
                self._deferred[state.stream] = self._clock() + LIVE_FIRST_S
                return
            for record in portion:
                same_life = record.epoch in (None, state.sequence.epoch)
                if until_seq is not None and record.seq >= until_seq and same_life:
                    return  # from here on live traffic brings everything
                self._take_record(record, items, replayed=True)
            next_seq = portion[-1].seq + 1

    def _recover_deferred(self, items: list[Item]) -> None:
        now = self._clock()
        for stream in [s for s, due_at in self._deferred.items() if now >= due_at]:
            del self._deferred[stream]
            self._recover(self._streams[stream], items, None, defers=False)


def _fingerprint(payload: bytes) -> tuple[int, bytes]:
    """Tell batches of one number apart; their time stamps are in the first bytes."""
    return len(payload), payload[:24]
