"""`lake resolve`: an incident to its first cause, with what proves it."""

from __future__ import annotations

import argparse

from lake.cli.incident_text import incident_text
from lake.cli.opening import open_named
from lake.errors import Invalid


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--run", metavar="R", help="look at a run")
    which.add_argument("--incident", metavar="ID", help="look at a stored incident again")
    parser.add_argument("--attempt", metavar="A", type=int, help="only this attempt of the run")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Resolve and print.

    Raises:
        Invalid: `--attempt` was given for a stored incident.
    """
    from lake.cli.render import write_json

    if args.incident is not None and args.attempt is not None:
        raise Invalid("--attempt goes with --run: a stored incident is of the attempts it was resolved for")
    with open_named(args) as lake:
        answer = lake.resolve(incident=args.incident, run=args.run, attempt=args.attempt)
    if args.format == "json":
        write_json(answer)
    else:
        print(incident_text(answer), end="")
    return 0
