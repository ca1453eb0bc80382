"""A publisher in a process of its own, to be killed: `python publisher_process.py CONFIG LIFE COUNT PAUSE_S`.

Publishes COUNT batches, each storing the block `LIFE << 40 | n`, says `published N` after each
hundred and at the end, then waits for its standard input to close, or to say `leave` (which ends the
process without shutdown).
"""

from __future__ import annotations

import sys
import time

from kvevents_core import BlockStored, EventPublisherFactory, KVEventBatch


def main() -> None:
    """Publish and wait."""
    config, life, count, pause_s = sys.argv[1:5]
    publisher = EventPublisherFactory.create(config, 0)
    for number in range(int(count)):
        block = int(life) << 40 | number
        event = BlockStored([block], None, [1, 2, 3, 4], 4, None, "GPU")
        publisher.publish(KVEventBatch(time.time(), [event]))
        if number % 100 == 99:
            print(f"published {number + 1}", flush=True)
        if float(pause_s):
            time.sleep(float(pause_s))
    print(f"published {count}", flush=True)
    if sys.stdin.readline().strip() != "leave":
        publisher.shutdown()


if __name__ == "__main__":
    main()
