"""`lake evidence`: the raw objects behind the rows - list, get, verify - and rows back out as a trace or a profile."""

from __future__ import annotations

import argparse
import re
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
    exporting = actions.add_parser("export", help="write rows of a run as a Perfetto trace or a profile")
    _configure_export(exporting)
    for action in (listing, getting, verifying, exporting):
        add_lake_options(action, first=False)


def _configure_export(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write rows of a run to a file. The ending chooses the format: .pftrace or .perfetto-trace, a Perfetto trace of"
        " spans, flows, metrics and samples (ui.perfetto.dev opens it); .pb or .pprof, the flame graph of one attempt"
        " as pprof; .collapsed or .folded, the same as collapsed stacks. With .gz after it, the file is compressed."
    )
    parser.add_argument("--run", metavar="R", required=True)
    parser.add_argument("--attempt", metavar="A", type=int, help="default: all; a flame graph needs one")
    parser.add_argument("--steps", metavar="A-B", help="steps A to B, both included; or one step")
    parser.add_argument("--ranks", "--rank", metavar="LIST", help="0,2-4; default: all; a flame graph takes one or all")
    parser.add_argument("--flame", action="store_true", help="a profile is meant: refuse the ending of a trace")
    parser.add_argument("--sample-type", metavar="T", help="of a flame graph; default: the most frequent one")
    parser.add_argument("--align", action="store_true", help="estimate clock offsets that are not known")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of the report")
    parser.add_argument("-o", "--output", metavar="FILE", required=True)


def run(args: argparse.Namespace) -> int:
    """Do one action."""
    with open_named(args) as lake:
        return {"ls": _list, "get": _get, "verify": _verify, "export": _export}[args.action](lake, args)


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


def _export(lake: Lake, args: argparse.Namespace) -> int:
    from lake.query.export import Selection
    from lake.query.export_file import is_profile

    if args.flame and not is_profile(args.output):
        raise Invalid(f"--flame writes a profile: name a .pb.gz or .collapsed file, not {args.output}")
    (low, high) = _range("--steps", args.steps)
    ranks = None if args.ranks is None else [_range("--ranks", part) for part in args.ranks.split(",")]
    selection = Selection(
        run_id=args.run,
        attempt_id=args.attempt,
        step_lo=low,
        step_hi=high,
        ranks=None if ranks is None else tuple(rank for a, b in ranks for rank in range(a or 0, (b or 0) + 1)),
    )
    done = lake.export(args.output, selection, sample_type=args.sample_type, align=args.align)
    if args.format == "json":
        from lake.cli.render import write_json

        write_json(done.as_dict())
        return 0
    held = ", ".join(f"{count} {what}" for what, count in done.written.items() if count)
    print(f"{done.path}: {done.format}, {done.bytes} bytes: {held}")
    for reason, count in done.left_out.items():
        print(f"lake: left out: {count} {reason}", file=sys.stderr)
    return 0


def _range(option: str, text: str | None) -> tuple[int | None, int | None]:
    """Both ends of `7` or `3-7`."""
    if text is None:
        return None, None
    match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", text.strip())
    if match is None or int(match[2] or match[1]) - int(match[1]) not in range(1 << 20):
        raise Invalid(f"{option} takes a number or a range such as 3-7, got {text!r}")
    return int(match[1]), int(match[2] or match[1])
