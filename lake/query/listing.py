"""Parquet scans over an explicit list of files with a declared schema.

DataFusion's `CREATE EXTERNAL TABLE` takes a list of files but knows no MAP type, and `register_listing_table`
takes any schema but only one path. A serialised scan (`LogicalPlanNode.listing_scan` of datafusion.proto: field
2 is `repeated string paths`) has both, so the scan of one folder is taken as a template and its path
is replaced. Columns that a file does not have read as null; row groups and pages are pruned as usual.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from datafusion import DataFrame, SessionContext
from datafusion.plan import LogicalPlan

_NOWHERE: Final = "file:///lake-has-no-such-folder/"
_LISTING_SCAN: Final = 0x0A
_PATHS: Final = 0x12


class Listing:
    """The scan of one table in one session, without its files."""

    def __init__(self, context: SessionContext, name: str, schema: pa.Schema) -> None:
        """Registers the table without files under its name; such a table can be planned, not read."""
        self._context = context
        context.register_listing_table(name, _NOWHERE, schema=schema)
        node = context.table(name).logical_plan().to_bytes()
        length, start = _read_varint(node, 1)
        path_bytes, path_start = _read_varint(node, start + 1)
        if node[0] != _LISTING_SCAN or node[start] != _PATHS or start + length != len(node):
            raise AssertionError("the serialised form of a listing scan has changed")
        self._template = node[path_start + path_bytes :]

    def over(self, uris: Iterable[str]) -> DataFrame:
        """The table over exactly these files."""
        paths = b"".join(_field(_PATHS, uri.encode()) for uri in uris)
        node = _field(_LISTING_SCAN, paths + self._template)
        return self._context.create_dataframe_from_logical_plan(LogicalPlan.from_bytes(self._context, node))


def _field(tag: int, body: bytes) -> bytes:
    return bytes((tag,)) + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
