"""Frames between the two processes come out as they went in, however the bytes are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvevents_core.sender_process.frames import (
    BATCH,
    END,
    LOSS,
    FrameReader,
    batch_frame,
    end_frame,
    loss_frame,
)

COUNTS = st.integers(0, 2**32 - 1)
FRAMES = st.one_of(
    st.tuples(st.just(BATCH), COUNTS, COUNTS, st.binary(max_size=300)),
    st.tuples(st.just(LOSS), COUNTS, st.just(0), st.just(b"")),
    st.tuples(st.just(END), st.just(0), st.just(0), st.just(b"")),
)


def packed(frame: tuple[int, int, int, bytes]) -> bytes:
    """Return one frame's bytes."""
    kind, lost, events, payload = frame
    if kind == BATCH:
        return b"".join(batch_frame(lost, events, payload))
    return loss_frame(lost) if kind == LOSS else end_frame()


@given(st.lists(FRAMES), st.lists(st.integers(1, 200)))
def test_frames_survive_any_cut(
    frames: list[tuple[int, int, int, bytes]], cuts: list[int]
) -> None:
    """Kinds, counts and payloads, in order, and none before it is whole."""
    data = b"".join(map(packed, frames))
    reader, found, fed = FrameReader(), [], 0
    for size in [*cuts, len(data)]:
        piece, data = data[:size], data[size:]
        reader.feed(piece)
        fed += len(piece)
        while frame := reader.next():
            events = len(frame.batch.events)
            found.append((frame.kind, frame.lost_before, events, frame.batch.payload))
        assert sum(len(packed(one)) for one in found) + reader.waiting_bytes == fed
    assert found == frames
    assert reader.waiting_bytes == 0
