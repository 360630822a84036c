"""An export as a file whose ending chooses the format."""

from __future__ import annotations

import gzip
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc

from lake.errors import Invalid
from lake.query.engine import Engine
from lake.query.export import Selection, export_trace
from lake.query.export_flame import flame_of

_FORMATS: Final = {
    **dict.fromkeys((".pftrace", ".perfetto-trace"), "perfetto"),
    **dict.fromkeys((".pb", ".pprof"), "pprof"),
    **dict.fromkeys((".collapsed", ".folded"), "collapsed"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file that was written and what is in it."""

    path: str
    format: str
    bytes: int
    written: dict[str, int]
    """counts of what the file holds"""
    left_out: dict[str, int]
    """rows by the reason why they are not in it"""

    def as_dict(self) -> dict[str, Any]:
        """The document of `lake evidence export --format json`."""
        return {name: getattr(self, name) for name in self.__slots__}


def is_profile(path: str | os.PathLike[str]) -> bool:
    """Whether the ending of a file asks for a flame graph."""
    return _FORMATS.get(_ending(Path(path))) in ("pprof", "collapsed")


def export_file(
    engine: Engine, selection: Selection, path: Path, *, sample_type: str | None = None, align: bool = False
) -> Exported:
    """Write the trace or the profile of a selection; the file appears whole or not at all.

    Raises:
        Invalid: the ending names no format, the selection does not fit it, or the file cannot be written.
        NotFound: there is nothing to write.
    """
    kind = _FORMATS.get(_ending(path))
    if kind is None:
        raise Invalid(f"the ending of {path} names no format: {', '.join(_FORMATS)}, each with or without .gz")
    if kind == "perfetto":
        trace = export_trace(engine, selection, align=align)
        data, written, left_out = trace.data, trace.written, trace.left_out
    else:
        flame = flame_of(engine, selection, sample_type)
        data = flame.pprof() if kind == "pprof" else flame.collapsed()
        lost = int(pc.sum(flame.stacks.is_null()).as_py())
        written = {"stacks": len(flame.weights), f"{flame.unit} of {flame.sample_type}": int(flame.weights.sum())}
        left_out = {"stacks that are not known, their weight is kept": lost} if lost else {}
    if path.suffix == ".gz":
        data = gzip.compress(data, 6, mtime=0)
    _write(path, data)
    return Exported(path=str(path), format=kind, bytes=len(data), written=written, left_out=left_out)


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise Invalid(f"cannot write {path}: {error.strerror}") from error
