"""The `lake` command: one module per subcommand, loaded when it is called."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn

from lake.cli.opening import add_lake_options
from lake.errors import LakeError

COMMANDS: Final = {
    "ingest": "take files and folders into the lake",
    "sql": "run SQL, or an interactive console",
    "resolve": "what went wrong in a run, first cause first, with evidence",
    "evidence": "list, get or verify raw objects",
    "status": "what the lake holds",
    "functions": "the table functions of SQL",
}
_INTERRUPTED: Final = 130
_CLOSED_PIPE: Final = 141


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line after the usage and end with exit code 2."""
        self.print_usage(sys.stderr)
        self.exit(2, f"lake: {message}\n")


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser with the arguments of one command, or of all (None); others are listed only."""
    parser = _Parser(
        prog="lake",
        description="Observability lakehouse and SQL engine for training clusters.",
        epilog="exit codes: 0 done; 1 part refused or nothing found; 2 wrong usage; 3 unavailable, retry; 4 corrupt",
    )
    add_lake_options(parser, first=True)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name, purpose in COMMANDS.items():
        sub = commands.add_parser(name, help=purpose, description=purpose)
        if command in (None, name):
            add_lake_options(sub, first=False)
            import_module(f"lake.cli.{name}").configure(sub)
    return parser


def _command(arguments: Sequence[str]) -> str:
    """The command word, which is not the value of an option before it."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        if word in COMMANDS and before not in ("--lake", "--store"):
            return word
    return ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code, and turns every error into one line on stderr.

    Without `argv` it is the program: it takes the process's arguments and ends the process.
    """
    if argv is not None:
        return _run(list(argv))
    code = _run(sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # a query that was cancelled may still compute on a thread that nothing can stop


def _run(arguments: list[str]) -> int:
    try:
        parsed = build_parser(_command(arguments)).parse_args(arguments)
        code = int(import_module(f"lake.cli.{parsed.command}").run(parsed))
        sys.stdout.flush()
    except SystemExit as stop:
        return int(stop.code or 0) if isinstance(stop.code, int | None) else 2
    except BrokenPipeError:
        # nobody reads any more: what is still buffered must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except KeyboardInterrupt:
        print("lake: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except LakeError as error:
        return _fail(error, error.message, error.exit_code)
    except Exception as error:  # noqa: BLE001 - the outermost loop
        return _fail(error, f"unexpected {type(error).__name__}: {error} (LAKE_DEBUG=1 shows where)", 1)
    return code


def _fail(error: Exception, message: str, code: int) -> int:
    if os.environ.get("LAKE_DEBUG"):
        traceback.print_exception(error)
    print(f"lake: {message}", file=sys.stderr)
    return code
