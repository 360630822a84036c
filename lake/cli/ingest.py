"""`lake ingest`: files and folders into the lake, and a report of what became of each."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from lake.cli.opening import open_named

if TYPE_CHECKING:
    from lake.ingest.report import Report


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="file or folder, recognised by content")
    parser.add_argument("--run", metavar="R", help="run of files that do not say it")
    parser.add_argument("--attempt", metavar="A", type=int, help="attempt of files that do not say it")
    parser.add_argument("--rank", metavar="N", type=int, help="rank of files that do not say it")
    parser.add_argument("--step", metavar="S", type=int, help="step of files that do not say it")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Ingest, report, and give 1 when a file was refused."""
    with open_named(args, create=True) as lake:
        report = lake.ingest(args.paths, run=args.run, attempt=args.attempt, rank=args.rank, step=args.step)
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
    for file in report.files:
        if file.status in ("taken", "salvaged") and file.problems:
            print(f"{file.status} {file.path} ({file.format}): {'; '.join(file.problems)}")
    counts = report.counts()
    if counts:
        print("files: " + ", ".join(f"{count} {status}" for status, count in sorted(counts.items())))
    if report.rows:
        print("rows added: " + ", ".join(f"{count} {table}" for table, count in report.rows.items()))
