"""`lake status`: tables, files, rows, bytes, runs and evidence of the lake."""

from __future__ import annotations

import argparse

from lake.cli.opening import open_named


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Print what the lake holds."""
    from lake.cli.render import table_text, write_json

    with open_named(args) as lake:
        status = lake.status()
    if args.format == "json":
        write_json({"lake": args.lake, **status})
        return 0
    import pyarrow as pa

    evidence = status["evidence"]
    print(f"lake {args.lake}, objects in {status['store']}\n")
    print(table_text(pa.Table.from_pylist(status["tables"]), None))
    print()
    runs = [{**run, "attempts": ", ".join(map(str, run["attempts"]))} for run in status["runs"]]
    schema = pa.schema([("run_id", pa.string()), ("service", pa.string()), ("attempts", pa.string())])
    print(table_text(pa.Table.from_pylist(runs, schema), None))
    print(f"\nevidence: {evidence['objects']} objects, {evidence['bytes']} bytes")
    return 0
