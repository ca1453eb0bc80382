"""Turns the records of a source into items, stream by stream: the reader's rules without threads.

Gaps are recovered from history where the transport has it, before anything later is handed out.
The only waiting done here is ``Recovery``'s, with deadlines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
from kvevents_core.items import Batch, Gap, Item, Restarted, Silent
from kvevents_core.naming import StreamId
from kvevents_core.recovery import Recovery
from kvevents_core.sequence import StreamSequence, Verdict
from kvevents_core.stats import ReaderStats
from kvevents_core.stream_state import StreamState, fingerprint
from kvevents_core.wire import BatchDecoder

if TYPE_CHECKING:
    from kvevents_core.backend import Capabilities, Source

LIVE_FIRST_S: Final = 0.5
"""How long live traffic may still bring what history no longer holds, before that is a gap."""
QUIET_S: Final = 1.0
"""After so long without a record history is asked once: the last batches may have been dropped."""
LOOK_AFTER_S: Final = 1.0
"""How long after a reconnect older records may still be read before the publisher is asked."""


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
        self._ordered_epochs = capabilities.carries_epoch
        self._next_seqs = next_seqs
        self._from_start = from_start
        self._silent_after_s = silent_after_s
        self._clock = clock
        self._history = Recovery(source, clock, is_possible=capabilities.replays and recover)
        self._decoder = BatchDecoder()
        self._streams: dict[StreamId, StreamState] = {}
        self._peers: dict[int, int] = {}
        self._reconnected: dict[int, float] = {}
        """Channels whose socket may still hold records from before the reconnect, since when."""
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

    def take(self, arrivals: Sequence[Arrival]) -> list[Item]:
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
        if self._reconnected:
            self._look_again(arrivals, items)
        if not arrivals and self._history.is_possible:
            self._check_quiet(items)
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
            if self._is_shared(record.channel):
                return  # whose number it was shows in the next batch of its rank
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

    def _is_shared(self, channel: int) -> bool:
        """Return whether one connection carries several ranks, which only payloads tell apart."""
        return not self._ordered_epochs and len(self._states_on(channel)) > 1

    def _state_of(self, stream: StreamId, channel: int) -> StreamState:
        state = self._streams.get(stream)
        if state is None:
            known = self._next_seqs.get(stream)
            next_seq = known[1] if known else (0 if self._from_start else None)
            sequence = StreamSequence(ordered_epochs=self._ordered_epochs, next_seq=next_seq)
            sequence.epoch = known[0] if known else None
            state = StreamState(stream, sequence, channel, self._clock())
            self._streams[stream] = state
        return state

    def _admit(
        self, state: StreamState, record: Record, items: list[Item], *, replayed: bool
    ) -> bool:
        """Decide whether ``record`` is handed out; add what must be said before it."""
        if not replayed:
            self._deferred.pop(state.stream, None)
            state.is_checked = False
        state.channel = record.channel
        state.heard_at = self._clock()
        state.is_silent = False
        sequence = state.sequence
        mark = fingerprint(record.payload)
        verdict = sequence.judge(record.epoch, record.seq, mark)
        if verdict is Verdict.UNCLEAR or (verdict is Verdict.GAP and sequence.reconnected):
            verdict = self._clear_up(state, record, verdict)
        if verdict is Verdict.RESTARTED:
            self._restart(state, record.epoch, items)
            verdict = sequence.judge(record.epoch, record.seq, mark)
        if not replayed and (
            verdict is Verdict.GAP or (verdict is Verdict.NEXT and not state.is_verified)
        ):
            verdict = self._recover_up_to(state, record, mark, items)
        if verdict is Verdict.GAP:
            first = sequence.next_seq or 0
            if sequence.epoch is None:  # the first record of all tells which life the hole is in
                sequence.epoch = record.epoch
            self._add_gap(state, items, first, record.seq - 1, "not received and not in history")
            verdict = Verdict.NEXT
        if verdict is Verdict.NEXT:
            sequence.accept(record.epoch, record.seq, mark)
            if record.channel not in self._reconnected:
                sequence.reconnected = False
            return True
        self._count_dropped(state, record, items, verdict)
        return False

    def _clear_up(self, state: StreamState, record: Record, verdict: Verdict) -> Verdict:
        """Ask the publisher which life it is in, or infer it from the connection."""
        sequence = state.sequence
        head = self._history.epoch(state.channel)
        if head is not None:
            if head != sequence.epoch and sequence.epoch is not None:
                return Verdict.RESTARTED
            if sequence.epoch is not None:
                return Verdict.CONFLICT if verdict is Verdict.UNCLEAR else verdict
        if verdict is Verdict.UNCLEAR and self._peers.get(state.channel, 1) > 1:
            return Verdict.CONFLICT
        return Verdict.RESTARTED

    def _restart(self, state: StreamState, epoch: int | None, items: list[Item]) -> None:
        previous = state.sequence.epoch
        state.restart(epoch if epoch is not None else self._history.epoch(state.channel))
        self.stats.restarts += 1
        items.append(Restarted(state.stream, previous, state.sequence.epoch))

    def _count_dropped(
        self, state: StreamState, record: Record, items: list[Item], verdict: Verdict
    ) -> None:
        if verdict is Verdict.DUPLICATE:
            self.stats.duplicates += 1
            return
        peers = self._peers.get(state.channel, 1)
        if peers < 2 and record.epoch is None:
            # One connection, one publisher: a former life sent it.
            self.stats.outdated += 1
            return
        self.stats.conflicts += 1
        conflict = state.conflict(record, verdict, peers)
        if conflict is not None:
            items.append(conflict)

    def _add_gap(
        self, state: StreamState, items: list[Item], first_seq: int, last_seq: int, reason: str
    ) -> None:
        self.stats.gaps += 1
        self.stats.lost_batches += last_seq - first_seq + 1
        items.append(Gap(state.stream, state.sequence.epoch, first_seq, last_seq, reason))

    # History -----------------------------------------------------------------------------------

    def _take_reconnect(self, notice: Reconnected, items: list[Item]) -> None:
        self._history.try_again(notice.channel)
        for state in self._states_on(notice.channel):
            # Where records carry epochs these tell a restart, and a gap is a gap.
            state.sequence.reconnected = not notice.first and not self._ordered_epochs
            state.last_before_reconnect = (state.sequence.next_seq or 0) - 1
        if notice.first:
            self._look(notice.channel, items, first=True)
        else:
            self._reconnected[notice.channel] = self._clock()

    def _look_again(self, arrivals: Sequence[Arrival], items: list[Item]) -> None:
        """Look where reconnected publishers stand, once their sockets hold nothing older.

        A reader that lags hears of the reconnect before it has read what came earlier. What does not
        follow on is cleared up as it comes; the new life may happen to follow on.
        """
        heard = {one.channel for one in arrivals if isinstance(one, Record | Reconnected)}
        patient_until = self._clock() - LOOK_AFTER_S
        for channel, since in list(self._reconnected.items()):
            if channel not in heard or since <= patient_until:
                del self._reconnected[channel]
                self._look(channel, items, first=False)

    def _look(self, channel: int, items: list[Item], *, first: bool) -> None:
        """Ask the publisher behind ``channel`` where it stands, and hand out what was missed."""
        if not self._history.is_possible or (first and not self._from_start):
            return
        head = self._history.head(channel)
        for state in self._states_on(channel):
            sequence = state.sequence
            if head is not None:
                is_known = sequence.epoch is not None or (not first and sequence.next_seq)
                if is_known and head.epoch != sequence.epoch:
                    self._restart(state, head.epoch, items)
                sequence.epoch = head.epoch
                sequence.reconnected = False
            elif not first:
                holds = self._still_holds(state, state.last_before_reconnect)
                if holds is False:
                    self._restart(state, None, items)
                sequence.reconnected = holds is None
            state.is_verified = state.is_verified and not first
            if sequence.next_seq is not None and (first or not sequence.reconnected):
                self._recover(state, items, None)

    def _states_on(self, channel: int) -> list[StreamState]:
        return [state for state in self._streams.values() if state.channel == channel]

    def _still_holds(self, state: StreamState, seq: int) -> bool | None:
        """Return whether history holds record ``seq`` as it came; None: it cannot be told.

        So a restart shows although the publisher, a stock engine, tells no epoch.
        """
        if seq < 0:
            return True
        mark = state.sequence.mark_of(seq)
        if mark is None or self._is_shared(state.channel):
            return None
        portion = self._history.portion(state.channel, state.stream, seq)
        if portion is None or (portion and portion[0].seq > seq):
            return None
        # History holds the newest records: if it does not come as far, it is another life's.
        return bool(portion) and fingerprint(portion[0].payload) == mark

    def _recover_up_to(
        self, state: StreamState, record: Record, mark: object, items: list[Item]
    ) -> Verdict:
        """Hand out what history holds before ``record``, and judge that anew.

        A record that the present life of the publisher never sent is refused.
        """
        sequence = state.sequence
        sent = self._recover(state, items, record.seq)
        if sent is not None and sent != mark:
            return Verdict.STALE
        if sent is None and record.epoch is None and sequence.next_seq:
            if sequence.epoch is None:  # of a stock engine everything up to the end was read
                if self._still_holds(state, sequence.next_seq - 1):
                    return Verdict.STALE
            elif head := self._history.head(state.channel):
                if head.epoch != sequence.epoch:
                    self._restart(state, head.epoch, items)
                    return self._recover_up_to(state, record, mark, items)
                if record.seq >= head.next_seq:
                    return Verdict.STALE  # the present life has not come so far
        state.is_verified = True  # as far as history can tell
        return sequence.judge(record.epoch, record.seq, mark)

    def _recover(
        self, state: StreamState, items: list[Item], until_seq: int | None, *, defers: bool = True
    ) -> object:
        """Hand out what history holds from ``next_seq`` on, up to ``until_seq`` or its end.

        Without ``until_seq`` nothing live has come yet. If history has lost its beginning by then,
        that may still come live, so ``defers`` waits for it a moment.

        Returns:
            The fingerprint of record ``until_seq``, if history still has it.
        """
        next_seq = state.sequence.next_seq or 0
        if state.sequence.epoch is None and self._still_holds(state, next_seq - 1) is False:
            self._restart(state, None, items)
            next_seq = 0
        while until_seq is None or next_seq <= until_seq:
            portion = self._history.portion(state.channel, state.stream, next_seq)
            if not portion or portion[-1].seq < next_seq:
                return None
            if until_seq is None and defers and portion[0].seq > next_seq:
                self._deferred[state.stream] = self._clock() + LIVE_FIRST_S
                return None
            if state.is_of_new_life(portion[0]):
                self._restart(state, portion[0].epoch, items)
                next_seq = 0
                continue
            for record in portion:
                if until_seq is not None and record.seq >= until_seq:
                    # From here on live traffic brings everything.
                    return fingerprint(record.payload) if record.seq == until_seq else None
                self._take_record(record, items, replayed=True)
            next_seq = portion[-1].seq + 1
        return None

    def _check_quiet(self, items: list[Item]) -> None:
        """Ask once, when a stream fell quiet, whether its last batches were dropped on the way."""
        now = self._clock()
        for state in list(self._streams.values()):
            if not state.is_checked and now - state.heard_at >= QUIET_S:
                state.is_checked = True
                if not state.sequence.reconnected:
                    self._recover(state, items, None, defers=False)

    def _recover_deferred(self, items: list[Item]) -> None:
        now = self._clock()
        for stream in [s for s, due_at in self._deferred.items() if now >= due_at]:
            del self._deferred[stream]
            self._recover(self._streams[stream], items, None, defers=False)
