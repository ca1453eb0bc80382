"""One line per item, for people and for programs."""

import json

from kvevents_core import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    Conflict,
    Gap,
    Restarted,
    Silent,
    StreamId,
)
from kvevents_core.cli.item_text import hash_text, item_line, item_object

STREAM = StreamId("t", "m", "i", 3)
BATCH = Batch(
    stream=STREAM,
    epoch=5,
    seq=17,
    ts=1_796_000_000.25,
    events=[
        BlockStored([-1, b"\x01\x02"], None, [1, 2, 3, 4], 2, medium="GPU"),
        BlockRemoved([7_000_000_000], "CPU"),
        AllBlocksCleared(),
    ],
    skipped_events=2,
)


def test_a_batch_is_summed_up_in_blocks_by_tier():
    """People see rank, seq and what happened, not the hashes."""
    line = item_line(BATCH)
    assert "rank 3  seq 17  stored GPU 2, removed CPU 1, cleared, 2 events not understood" in line
    assert "\n" not in line


def test_an_empty_batch_is_called_a_heartbeat():
    """And one that came from history says so."""
    line = item_line(Batch(stream=STREAM, epoch=5, seq=1, ts=0.0, events=[], replayed=True))
    assert line.endswith("heartbeat  (replayed)")


def test_every_other_item_has_a_line_that_begins_with_its_name():
    """What needs attention stands out at the left."""
    lines = [
        item_line(Gap(STREAM, 5, 3, 9, "ring too short")),
        item_line(Restarted(STREAM, 5, 6)),
        item_line(Conflict(STREAM, 5, 2, "two of them")),
        item_line(Silent(STREAM, 3.25)),
    ]
    assert lines == [
        "GAP       rank 3  seq 3-9 lost: ring too short",
        "RESTARTED rank 3  epoch 5 -> 6",
        "CONFLICT  rank 3  epoch 5 seq 2: two of them",
        "SILENT    rank 3  nothing for 3.2 s",
    ]


def test_json_has_hashes_as_text_since_many_readers_keep_53_bits_only():
    """Signed, unsigned and whole digests have one form; the object survives json."""
    facts = json.loads(json.dumps(item_object(BATCH)))
    assert facts["kind"] == "batch"
    assert (facts["stream"], facts["rank"], facts["seq"]) == ("t/m/i/3", 3, 17)
    stored, removed, cleared = facts["events"]
    assert stored["block_hashes"] == ["ffffffffffffffff", "0102"]
    assert stored["parent_block_hash"] is None
    assert removed == {
        "type": "BlockRemoved",
        "block_hashes": [hash_text(7_000_000_000)],
        "medium": "CPU",
    }
    assert cleared == {"type": "AllBlocksCleared"}


def test_tokens_are_users_prompts_and_are_printed_only_when_asked_for():
    """Otherwise only how many there are."""
    assert "token_ids" not in item_object(BATCH)["events"][0]
    assert item_object(BATCH)["events"][0]["tokens"] == 4
    assert item_object(BATCH, token_ids=True)["events"][0]["token_ids"] == [1, 2, 3, 4]


def test_one_hash_has_one_text_whatever_its_sign():
    """-5 and 2**64 - 5 are one block."""
    assert hash_text(-5) == hash_text(2**64 - 5)
    assert hash_text(None) is None
