"""`lake sql`: one statement, a script from stdin, or the interactive console."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from lake.cli.opening import open_named
from lake.errors import Invalid

if TYPE_CHECKING:
    from lake.embedded import Lake


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("query", nargs="?", metavar="QUERY", help="SQL; - or a pipe reads stdin; none opens a console")
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="K=V",
        help="value of $K: a number, or else text; a number between single quotes is text; repeatable",
    )
    parser.add_argument("--format", choices=("table", "json", "csv", "arrow", "parquet"), default="table")


def run(args: argparse.Namespace) -> int:
    """Run the query and print its rows."""
    if args.query is None and sys.stdin.isatty():
        from lake.cli.console import run_console

        with open_named(args) as lake:
            return run_console(lake)
    text = args.query if args.query not in (None, "-") else _standard_input()
    with open_named(args) as lake:
        return _run_script(lake, text, args)


def _run_script(lake: Lake, text: str, args: argparse.Namespace) -> int:
    from lake.cli.render import write_rows
    from lake.cli.statements import parameters, split

    statements = split(text)
    if text.lstrip().startswith("\\"):
        raise Invalid("commands such as \\d are for the console: run `lake sql` without a query")
    if not statements:
        raise Invalid("no SQL given")
    if len(statements) > 1 and args.format != "table":
        raise Invalid(f"--format {args.format} prints one result, got {len(statements)} statements")
    params = parameters(args.param)
    for statement in statements:
        write_rows(lake.sql(statement, params).arrow(), args.format)
    return 0


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"standard input is not UTF-8 text: {error}") from error
