"""`lake ingest`: files and folders into the lake, and a report of what became of each."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final

from lake.cli.opening import open_named
from lake.errors import Invalid

if TYPE_CHECKING:
    from lake.ingest.report import FileReport, Report

_STATUSES: Final = ("taken", "salvaged", "duplicate", "ignored", "refused")
_FEW: Final = 3
"""Files that are named one by one when they have the same problem; more are counted."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="file or folder, recognised by content")
    parser.add_argument("--run", metavar="R", help="run of files that do not say it")
    parser.add_argument("--attempt", metavar="A", type=int, help="attempt of files that do not say it")
    parser.add_argument("--rank", metavar="N", type=int, help="rank of files that do not say it")
    parser.add_argument("--step", metavar="S", type=int, help="step of files that do not say it")
    parser.add_argument("--jobs", metavar="N", type=int, help="files decoded at a time (default: processors)")
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show how far it is on stderr (default: on a terminal)",
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Ingest, report, and give 1 when a file was refused.

    Raises:
        Invalid: `--jobs` is not at least 1, or a path does not exist.
    """
    from lake.cli.progress import ProgressLine

    if args.jobs is not None and args.jobs < 1:
        raise Invalid(f"--jobs takes a number from 1, got {args.jobs}")
    shown = sys.stderr.isatty() if args.progress is None else args.progress
    with open_named(args, create=True) as lake, ProgressLine(sys.stderr) if shown else nullcontext() as line:
        report = lake.ingest(
            args.paths,
            run=args.run,
            attempt=args.attempt,
            rank=args.rank,
            step=args.step,
            jobs=args.jobs,
            progress=line,
        )
    if args.format == "json":
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        _print_text(report)
    for file in report.refused:
        print(f"lake: refused {file.path}: {'; '.join(file.problems)}", file=sys.stderr)
    if not report.files:
        print("lake: no files found in what was named", file=sys.stderr)
    return report.exit_code


def _print_text(report: Report) -> None:
    """Notes on files, then what was taken by format; refused files are said on stderr."""
    _print_notes([file for file in report.files if file.status == "taken" and file.problems])
    for file in report.files:
        if file.status == "salvaged":
            print(f"salvaged {file.path} ({file.format}): {'; '.join(file.problems)}")
    counts = report.counts()
    if not counts:
        return
    used = [status for status in _STATUSES if status in counts]
    formats = report.formats()
    if len(formats) > 1:
        wide = max(len(name) for name in formats)
        print(" " * wide + "".join(f"{status:>11}" for status in used))
        for name, of_status in formats.items():
            print(f"{name:<{wide}}" + "".join(f"{of_status.get(status, ''):>11}" for status in used))
    print("files: " + ", ".join(f"{counts[status]} {status}" for status in used))
    if report.rows:
        print("rows added: " + ", ".join(f"{count} {table}" for table, count in report.rows.items()))


def _print_notes(files: list[FileReport]) -> None:
    """What was not taken as it stood: the same note on many files is said once."""
    notes: dict[str, list[FileReport]] = {}
    for file in files:
        for problem in file.problems:
            notes.setdefault(problem, []).append(file)
    for problem, having in notes.items():
        if len(having) > _FEW:
            print(f"{len(having)} files taken, {having[0].path} and others: {problem}")
        else:
            for file in having:
                print(f"taken {file.path} ({file.format}): {problem}")
