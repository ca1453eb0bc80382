"""A publisher in a process of its own, to be killed: `python publisher_process.py CONFIG LIFE COUNT PAUSE_S`.

Publishes COUNT batches, each storing the block `LIFE << 40 | n`, says `published N` after each
hundred and at the end, then waits for its standard input to close. The word `leave` there makes it
publish one batch more and end at once, without shutdown.
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
        publisher.publish(stored(int(life), number))
        if number % 100 == 99:
            print(f"published {number + 1}", flush=True)
        if float(pause_s):
            time.sleep(float(pause_s))
    print(f"published {count}", flush=True)
    if sys.stdin.readline().strip() == "leave":
        publisher.publish(stored(int(life), int(count)))
    else:
        publisher.shutdown()


def stored(life: int, number: int) -> KVEventBatch:
    """Return a batch that stores one block, named by life and number."""
    event = BlockStored([life << 40 | number], None, [1, 2, 3, 4], 4, None, "GPU")
    return KVEventBatch(time.time(), [event])


if __name__ == "__main__":
    main()
