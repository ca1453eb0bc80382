"""``token_ids`` as a list, an ``array`` and a numpy array: ``python -m bench.arrays``."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from typing import Any

from bench.contenders import OURS, batch_maker
from bench.decode import microseconds
from bench.measure import Line, main, spread

TITLE = "Encoding 4,096 tokens (c)"


def run(rounds: int) -> Sequence[Line]:
    """Encode the same batch with each kind of tokens, in turns."""
    from kvevents_core.wire import BatchEncoder

    encode = BatchEncoder(0).encode
    batches = _batches()
    found: dict[str, list[float]] = {name: [] for name in batches}
    found["list made on the engine's thread first"] = []
    tokens = batches["array('i')"].events[0].token_ids
    batch = batches["list"]
    for _ in range(3 * rounds):
        for name, each in batches.items():
            found[name].append(microseconds(lambda each=each: encode(each), 60))

        def converted() -> None:
            batch.events[0].token_ids = tokens.tolist()
            encode(batch)

        found["list made on the engine's thread first"].append(microseconds(converted, 60))
    return [Line(f"token_ids as {name}", spread(values, " us")) for name, values in found.items()]


def _batches() -> dict[str, Any]:
    made = {"list": batch_maker(OURS, "c")(time.time())}
    tokens = made["list"].events[0].token_ids
    kinds = {"array('i')": array("i", tokens)}
    try:
        import numpy as np
    except ImportError:
        pass
    else:
        kinds["numpy int32"] = np.array(tokens, dtype=np.int32)
    for name, kind in kinds.items():
        made[name] = batch_maker(OURS, "c")(time.time())
        made[name].events[0].token_ids = kind
    return made


if __name__ == "__main__":
    main(TITLE, run, rounds=5)
