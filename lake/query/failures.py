"""Errors of DataFusion as errors of Lake: what is wrong, where, and what would be right."""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Final

from lake.errors import Corrupt, Invalid, LakeError, LimitExceeded, Unavailable

_LOCAL: Final = threading.local()
_PREFIXES: Final = re.compile(
    r"^(DataFusion error: |Error during planning: |Schema error: |Execution error: |SQL error: |Arrow error: "
    r"|External error: |This feature is not implemented: |Optimizer rule '\w+' failed\s+caused by\s+"
    r"|type_coercion\s+caused by\s+)+"
)
_SYNTAX: Final = re.compile(
    r'(?:ParserError|TokenizerError)\("(?P<what>.*?)(?: at Line: (?P<line>\d+), Column: (?P<column>\d+))?"\)', re.S
)
_TABLE: Final = re.compile(r"table '(?:datafusion\.)?(?:public\.)?(?P<name>.*?)' not found")
_EVALUATION: Final = re.compile(r'Error evaluating filter predicate: ArrowError\(\w+\("(?P<what>.*?)"\)', re.S)
_AMBIGUOUS: Final = re.compile(r"Ambiguous reference to unqualified field \"?(?P<name>\w+)")
_FUNCTION: Final = re.compile(r"table function '(?P<name>.*?)' not found")
_FIELD: Final = re.compile(
    r"No field named (?P<name>.+?)\.(?: Did you mean '.*?'\?)?(?:\s+Valid fields are (?P<valid>.*?)\.)?\s*$", re.S
)
_PANIC: Final = re.compile(r"panicked with message \"(?P<what>(?:range|slice|index|byte|offset)[^\"]*)\"")
"""The Parquet reader does not expect offsets that point outside of the file."""
_COLUMN: Final = re.compile(r"\w+(?:\.\w+)*")


def remember(error: BaseException) -> None:
    """Keep the error of a table function on this thread; DataFusion passes only its text on."""
    _LOCAL.failure = error


class Translated:
    """Turns what DataFusion raises inside into a `LakeError`.

    `names` are the tables, `functions` the table functions that a message may suggest.
    """

    def __init__(self, names: Iterable[str], functions: Iterable[str], memory_bytes: int) -> None:
        self._names = sorted(names)
        self._functions = sorted(functions)
        self._memory_bytes = memory_bytes

    def __enter__(self) -> None:
        _LOCAL.failure = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = getattr(_LOCAL, "failure", None)
        _LOCAL.failure = None
        if error is None or isinstance(error, LakeError | KeyboardInterrupt | GeneratorExit):
            return
        if isinstance(error, Exception) or kind.__name__ == "PanicException":  # type: ignore[union-attr]
            if failure is not None:
                raise failure
            raise self._translate(str(error)) from error

    def _translate(self, text: str) -> LakeError:
        if found := _SYNTAX.search(text):
            where = f" at line {found['line']}, column {found['column']}" if found["line"] else ""
            what = found["what"].replace('\\"', '"').replace("Expected: ", "expected ").replace(", found: ", ", found ")
            return Invalid(f"syntax error{where}: {what}")
        if found := _FUNCTION.search(text):
            return Invalid(
                f"no table function {found['name']!r}{_near(found['name'], self._functions)}; all: lake_functions()"
            )
        if found := _TABLE.search(text):
            return Invalid(f"no table {found['name']!r}{_near(found['name'], self._names)}; all: SHOW TABLES")
        if found := _FIELD.search(text):
            return _no_column(found["name"].strip("'\""), found["valid"] or "")
        if found := _EVALUATION.search(text):
            return Invalid(f"a condition cannot be computed for every row: {found['what']}")
        if found := _AMBIGUOUS.search(text):
            return Invalid(f"column {found['name']!r} is in several tables: write it as table.{found['name']}")
        if "Resources exhausted" in text or "ResourcesExhausted" in text:
            limit = f"the memory limit of {self._memory_bytes} bytes (LAKE_QUERY_MEMORY_BYTES)"
            return LimitExceeded(
                f"the query needs more than {limit}: filter by run_id, step_id or ts, or select fewer columns"
            )
        if "Object Store error" in text or "ObjectStore" in text:
            if "not found" in text.lower():
                return Corrupt(f"a published file is missing in the store: {_clean(text)}")
            return Unavailable(f"the object store failed: {_clean(text)}")
        if found := _PANIC.search(text):
            return Corrupt(
                f"a published file cannot be read: the reader failed on it ({found['what']}); "
                "`lake evidence verify` tells which file has changed"
            )
        if "Parquet error" in text:
            return Corrupt(f"a published file cannot be read: {_clean(text)}")
        return Invalid(_clean(text))


def _no_column(name: str, valid: str) -> Invalid:
    fields = [field.strip().replace('"', "") for field in valid.split(",")]
    bare = [field.rsplit(".", 1)[-1] for field in fields if _COLUMN.fullmatch(field)]
    if not _COLUMN.fullmatch(name):  # "double quotes" make a name of what was meant as text
        return Invalid(f"no column {name!r}: text is written in single quotes, as in run_id = 'run-1'")
    near = _near(name.rsplit(".", 1)[-1], bare, show_all=True)
    return Invalid(f"no column {name!r}{near or ': text is written in single quotes'}")


def _near(name: str, known: list[str], *, show_all: bool = False) -> str:
    near = difflib.get_close_matches(name.lower(), sorted(set(known)), n=3, cutoff=0.6)
    if near:
        return f", did you mean {' or '.join(repr(other) for other in near)}?"
    return f"; there are: {', '.join(sorted(set(known))[:60])}" if show_all and known else ""


def _clean(text: str) -> str:
    first = _PREFIXES.sub("", text.strip())
    first = re.sub(r"\s*\n\s*", " ", _PREFIXES.sub("", first.removeprefix("Schema error: ")))
    return (first[:1].lower() + first[1:]).rstrip(".")[:1000]
