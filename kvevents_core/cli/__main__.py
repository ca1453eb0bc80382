"""Lets ``python -m kvevents_core.cli`` stand for the console script."""

import sys

from kvevents_core.cli import main

sys.exit(main())
