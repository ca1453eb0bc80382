"""Started by the engine's process: ``python -m kvevents_core.sender_process DATA_FD CONTROL_FD``."""

from __future__ import annotations

import sys

from kvevents_core.sender_process.child import main

main(int(sys.argv[1]), int(sys.argv[2]))
