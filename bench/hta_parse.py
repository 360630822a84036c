"""Parses one trace with Holistic Trace Analysis (PyPI: HolisticTraceAnalysis) and prints the seconds it took.

Run by `bench.decode_chrome` with the interpreter of an environment that has it.
"""

from __future__ import annotations

import logging
import sys
import time

from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.parser_config import ParserConfig


def main() -> None:
    """Print the seconds of parsing the trace named on the command line."""
    logging.disable(logging.CRITICAL)
    start = time.perf_counter()
    parse_trace_dataframe(sys.argv[1], ParserConfig.get_default_cfg())
    print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
