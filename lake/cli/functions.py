"""`lake functions`: the table functions, what each takes and gives."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="show arguments, columns and an example of one")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    """Print the functions, or one in full.

    Raises:
        NotFound: there is no function of that name.
    """
    from lake.cli.render import write_json
    from lake.errors import NotFound
    from lake.query.functions import listing

    functions = [row for row in listing().to_pylist() if args.name in (None, row["name"])]
    if not functions:
        raise NotFound(f"no table function {args.name!r}, `lake functions` lists them")
    if args.format == "json":
        write_json(functions)
        return 0
    for function in functions:
        print(f"{function['signature']}\n    {function['purpose']}")
        if args.name is not None:
            print(
                "\narguments:", *(f"    {a['name']} {a['type']}: {a['doc']}" for a in function["arguments"]), sep="\n"
            )
            print("\ncolumns:", *(f"    {c['name']} {c['type']}: {c['doc']}" for c in function["columns"]), sep="\n")
            print(f"\nfollows: {function['source']}\nexample: {function['example']}")
    return 0
