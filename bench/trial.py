"""One trial of one row by one contender, in a process of its own.

Run by ``measure`` as ``python -m bench.trial ROW CONTENDER JSON``; prints what it found as JSON.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys


def main() -> None:
    """Run the trial and leave at once: a publisher of an engine may not end cleanly."""
    logging.disable(logging.INFO)
    row, contender, settings = sys.argv[1:]
    found = importlib.import_module(f"bench.{row}").trial(contender, **json.loads(settings))
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
