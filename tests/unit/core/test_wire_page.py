"""The reference page of the wire says what the code does."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvevents_core.wire import BatchDecoder, BatchEncoder

PAGE = (Path(__file__).parents[3] / "docs/reference/wire.md").read_text()
EXAMPLES = re.findall(r"```hex\n(.*?)```\n\n```json\n(.*?)```", PAGE, re.DOTALL)
KEYS = re.findall(r"^\| `(\w+)` \| (`type`[^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)


def test_the_page_has_its_examples_and_its_table() -> None:
    """The two tests below look at something."""
    assert len(EXAMPLES) == 4
    assert len(KEYS) == 3


@pytest.mark.parametrize(("text", "meaning"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_are_what_is_sent_and_read(text: str, meaning: str) -> None:
    """The bytes mean the JSON beside them, decode whole, and are encoded to the same bytes."""
    payload = bytes.fromhex(text)
    document = msgspec.msgpack.decode(payload)
    assert document == msgspec.json.decode(meaning)
    decoded = BatchDecoder().decode(payload)
    assert decoded.skipped_events == 0
    positional = any(isinstance(event, list) for event in document[1])
    encoder = BatchEncoder(9, dialect="array" if positional else "native")
    assert encoder.encode(decoded.batch) == payload


@pytest.mark.parametrize(("name", "always", "optional"), KEYS)
def test_the_table_of_keys_is_what_is_written(name: str, always: str, optional: str) -> None:
    """In the order of the table, which is that of the positional form."""
    kinds: dict[str, type[Any]] = {
        kind.__name__: kind for kind in (BlockStored, BlockRemoved, AllBlocksCleared)
    }
    fields = kinds[name].__struct_fields__
    always_names, optional_names = re.findall(r"\w+", always), re.findall(r"\w+", optional)
    assert ("type", *fields) == (*always_names, *optional_names)
    bare = kinds[name]([]) if "block_hashes" in fields else kinds[name]()
    assert list(msgspec.to_builtins(bare)) == always_names
    written = msgspec.msgpack.decode(msgspec.msgpack.encode(bare))
    assert list(written) == always_names
