"""vLLM's plugin: its event publishers by kvevents, with nothing changed in vLLM.

vLLM calls ``register`` before it builds its argument parser and again in each EngineCore (0.33,
``plugins/__init__.py``); it does not guard the call, so nothing may escape it. vLLM's configuration
type knows two publishers and refuses every other key: it is widened here, and checked by our
settings while vLLM parses the flag. The factory is wrapped only where the flag asks for us, since
importing it costs a second in processes that never publish.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

from kvevents_core.config_sources import FLAG, read_flag
from kvevents_core.engines import versions
from kvevents_core.errors import ConfigError

logger = logging.getLogger("vllm.kvevents")  # below vLLM's own logger, which shows it

_registered = False


def register() -> None:
    """Widen vLLM's configuration. Quiet when called again; never raises."""
    global _registered  # noqa: PLW0603 - once per process
    if _registered:
        return
    _registered = True
    try:
        from kvevents_core.engines import vllm_config

        vllm_config.widen()
        _read_files()
        logger.info(
            "kvevents: plugged into vLLM %s; its publishers are chosen with %s",
            versions.installed("vllm"),
            FLAG,
        )
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        logger.error(  # noqa: TRY400 - one line; vLLM goes on without us
            "kvevents: cannot publish for vLLM %s: %s: %s; vLLM's own publishers work as before",
            versions.installed("vllm"),
            type(error).__name__,
            error,
        )


def _read_files() -> None:
    """Let ``--kv-events-config`` take ``@file``; vLLM would parse the text as JSON before us."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parse: Callable[..., Any] = FlexibleArgumentParser.parse_known_args

    def parse_known_args(self: Any, args: Any = None, namespace: Any = None) -> Any:
        arguments = sys.argv[1:] if args is None else list(args)
        return parse(self, expand_files(self, arguments), namespace)

    FlexibleArgumentParser.parse_known_args = parse_known_args


def expand_files(parser: Any, arguments: list[str]) -> list[str]:
    """Return ``arguments`` with ``--kv-events-config @file`` replaced by the file's keys as JSON.

    A file that cannot be read ends in ``parser.error``, like any wrong argument.
    """
    expanded: list[str] = []
    for argument in arguments:
        prefix = f"{FLAG}="
        if argument.startswith(prefix + "@"):
            expanded.append(prefix + _file_as_json(parser, argument.removeprefix(prefix)))
        elif argument.startswith("@") and expanded and expanded[-1] == FLAG:
            expanded.append(_file_as_json(parser, argument))
        else:
            expanded.append(argument)
    return expanded


def _file_as_json(parser: Any, text: str) -> str:
    try:
        given = read_flag(text)
    except ConfigError as error:
        parser.error(f"argument {FLAG}: {error}")
        raise  # not reached: a parser's error() leaves the program
    return json.dumps({key: each.value for key, each in given.items()}, default=str)
