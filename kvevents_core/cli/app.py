"""The command line as a whole: which commands there are, and one line for every error."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Final, cast

import typer

from kvevents_core.cli.backends import backends
from kvevents_core.cli.check import check
from kvevents_core.cli.demo import demo
from kvevents_core.cli.output import BAD_USAGE, FAILED, OK, UsageError, print_error, print_json
from kvevents_core.cli.publish import publish
from kvevents_core.cli.ranks import ranks
from kvevents_core.cli.tail import tail
from kvevents_core.errors import BackendError, ConfigError, KVEventsError, LayoutError
from kvevents_core.simulation.trace import TraceError

app = typer.Typer(
    name="kvevents",
    help="KV-cache events as exactly one ordered stream per data-parallel rank.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_INTERRUPTED: Final = 130
_PARSER_ERROR: Final = cast(
    "type[Exception]",
    next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"),
)
"""What the parser of this typer raises: click's own class, or typer's copy of it (0.29)."""
_BAD_USAGE_ERRORS: Final = (UsageError, ConfigError, BackendError, LayoutError, TraceError)

for command in (demo, ranks, check, backends, tail, publish):
    app.command(no_args_is_help=False)(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kvevents {version('kvevents')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """KV-cache events as exactly one ordered stream per data-parallel rank."""


def run(arguments: Sequence[str]) -> int:
    """Run the command that ``arguments`` name and return its exit code; never raises an error.

    With ``--json`` an error is also one object, ``{"error": ...}``, on standard output.
    """
    try:
        code = app(args=list(arguments), prog_name="kvevents", standalone_mode=False)
    except _PARSER_ERROR as exc:
        return _fail(_parser_text(exc), BAD_USAGE, arguments)
    except _BAD_USAGE_ERRORS as exc:
        return _fail(str(exc), BAD_USAGE, arguments)
    except KVEventsError as exc:
        return _fail(str(exc), FAILED, arguments)
    except BrokenPipeError:
        # Whoever read our output has gone (``kvevents tail | head``): no error, and none at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    return code if isinstance(code, int) else OK


def _parser_text(exc: BaseException) -> str:
    format_message = getattr(exc, "format_message", None)
    return str(format_message() if format_message else exc)


def _fail(message: str, code: int, arguments: Sequence[str]) -> int:
    if message:  # empty where the help was printed instead
        print_error(message)
    if "--json" in arguments:
        print_json({"error": message})
    return code
