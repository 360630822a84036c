"""`lake evidence`: the raw objects behind the rows - list, get, verify."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lake.cli.opening import add_lake_options, open_named
from lake.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from lake.embedded import Lake

_FILTERS: Final = {"run": "run_id", "attempt": "attempt_id", "rank": "rank_id", "kind": "kind"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the actions and their arguments."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("ls", help="list the objects and what they are bound to")
    listing.add_argument("--run", metavar="R")
    listing.add_argument("--attempt", metavar="A", type=int)
    listing.add_argument("--rank", metavar="N", type=int)
    listing.add_argument("--kind", metavar="FORMAT", help="kineto, flight_recorder, otlp, …")
    listing.add_argument("--format", choices=("table", "json", "csv"), default="table")
    getting = actions.add_parser("get", help="write one object, bit for bit")
    getting.add_argument("ref", metavar="REF", help="ev:… or a unique beginning of it")
    getting.add_argument("-o", "--output", metavar="FILE", help="default: stdout")
    verifying = actions.add_parser("verify", help="hash objects again; exit code 4 when one has changed")
    verifying.add_argument("refs", nargs="*", metavar="REF", help="default: all")
    verifying.add_argument("--format", choices=("text", "json"), default="text")
    for action in (listing, getting, verifying):
        add_lake_options(action, first=False)


def run(args: argparse.Namespace) -> int:
    """Do one action."""
    with open_named(args) as lake:
        return {"ls": _list, "get": _get, "verify": _verify}[args.action](lake, args)


def _list(lake: Lake, args: argparse.Namespace) -> int:
    from lake.cli.render import write_rows

    given = {name: getattr(args, name) for name in _FILTERS if getattr(args, name) is not None}
    where = " AND ".join(f"{_FILTERS[name]} = ${name}" for name in given)
    rows = lake.sql(
        "SELECT evidence_ref, kind, run_id, attempt_id, rank_id, step_from, step_to, size_bytes, state, name"
        " FROM evidence" + (f" WHERE {where}" if where else "") + " ORDER BY run_id, attempt_id, kind, rank_id, name",
        given or None,
    ).arrow()
    write_rows(rows, args.format)
    if not rows.num_rows:
        print("lake: no evidence matches", file=sys.stderr)
    return 0 if rows.num_rows else 1


def _get(lake: Lake, args: argparse.Namespace) -> int:
    data = lake.evidence(args.ref)
    if args.output in (None, "-"):
        if sys.stdout.isatty():
            raise Invalid("evidence is binary data: name a file with -o")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return 0
    try:
        Path(args.output).write_bytes(data)
    except OSError as error:
        raise Invalid(f"cannot write {args.output}: {error.strerror}") from error
    return 0


def _verify(lake: Lake, args: argparse.Namespace) -> int:
    checks = list(lake.verify(args.refs))
    bad = [check for check in checks if check.problem]
    if args.format == "json":
        from lake.cli.render import write_json

        write_json(
            {
                "objects": len(checks),
                "bytes": sum(check.size_bytes for check in checks),
                "corrupt": [{"evidence_ref": c.evidence_ref, "name": c.name, "problem": c.problem} for c in bad],
            }
        )
    else:
        print(f"{len(checks) - len(bad)} of {len(checks)} objects are as they were stored")
    for check in bad:
        print(f"lake: {check.name}: {check.problem}", file=sys.stderr)
    return Corrupt.exit_code if bad else 0
