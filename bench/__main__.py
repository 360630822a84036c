"""Run every bench, or those named: `python -m bench [decode_otlp] [decode_chrome] [ingest] [sql] …`."""

from __future__ import annotations

import importlib
import sys

BENCHES = ("decode_otlp", "decode_chrome", "decode_perfetto", "decode_pprof", "ingest", "sql")


def main() -> int:
    """Run and print; exit code 2 for a name that is none of the benches."""
    names = sys.argv[1:] or BENCHES
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        sys.stderr.write(f"no bench {unknown[0]!r}; there are: {', '.join(BENCHES)}\n")
        return 2
    for name in names:
        print(f"== {name}")
        importlib.import_module(f"bench.{name}").main()
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
