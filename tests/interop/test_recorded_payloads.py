"""Payloads recorded from real engines: our decoder reads every field, and the restated schemas hold.

The files come from ``tests/engines/drivers/record_payloads.py``; their names hold the version.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from interop.engine_schemas import SglangBatch, VllmBatch

from kvevents_core import KVEventBatch
from kvevents_core.wire import BatchDecoder, BatchEncoder

SCHEMAS = {"sglang": SglangBatch, "vllm": VllmBatch}
RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))


def _cases() -> list[Any]:
    cases = []
    for path in RECORDED:
        document = json.loads(path.read_text())
        cases += [
            pytest.param(
                document["engine"],
                bytes.fromhex(each["payload"]),
                id=f"{path.stem}: {each['what']}",
            )
            for each in document["payloads"]
        ]
    return cases


def test_both_engines_are_recorded() -> None:
    """There are payloads of both engines to check."""
    engines = {json.loads(path.read_text())["engine"] for path in RECORDED}
    assert engines == {"sglang", "vllm"}


@pytest.mark.parametrize(("engine", "payload"), _cases())
def test_decoder_reads_every_field(engine: str, payload: bytes) -> None:
    """No event is skipped, and each field that the engine wrote has its value in our struct."""
    ts, events, rank = msgspec.msgpack.decode(payload)
    decoded = BatchDecoder().decode(payload)
    assert decoded.skipped_events == 0
    assert (decoded.batch.ts, decoded.batch.dp_rank) == (ts, rank)
    assert len(decoded.batch.events) == len(events) > 0
    for ours, theirs in zip(decoded.batch.events, events, strict=True):
        assert type(ours).__name__ == theirs.pop("type")
        for field, value in theirs.items():
            assert msgspec.to_builtins(getattr(ours, field)) == value, field


@pytest.mark.parametrize(("engine", "payload"), _cases())
def test_restated_schema_holds_every_field(engine: str, payload: bytes) -> None:
    """The restated schema decodes the engine's payload and encodes the same content again."""
    batch = msgspec.msgpack.decode(payload, type=SCHEMAS[engine])
    assert _same(engine, msgspec.msgpack.encode(batch), payload)


@pytest.mark.parametrize(("engine", "payload"), _cases())
def test_engine_batch_is_encoded_as_it_comes(engine: str, payload: bytes) -> None:
    """A batch in the engine's structs leaves our encoder as the engine itself would send it."""
    batch: KVEventBatch = msgspec.msgpack.decode(payload, type=SCHEMAS[engine])
    assert _same(engine, BatchEncoder(0).encode(batch), payload)


def _same(engine: str, payload: bytes, recorded: bytes) -> bool:
    """Compare byte by byte, or field by field in order where the schema is of a later version.

    vLLM 0.33 has one field more than 0.32; with it msgspec writes the map's length in three bytes.
    """
    if engine == "sglang":
        return payload == recorded
    decoded, expected = msgspec.msgpack.decode(payload), msgspec.msgpack.decode(recorded)
    keys = [[list(event) for event in batch[1]] for batch in (decoded, expected)]
    return decoded == expected and keys[0] == keys[1]
