"""torch.distributed Flight Recorder dumps, version 2.x, pickle or JSON: what one rank had enqueued, and how far it got.

Fields: torch/csrc/distributed/c10d/FlightRecorder.hpp. A dump without entries, or an empty file, is a statement
about its rank (it enqueued nothing, or could not write), not an error.
"""

from __future__ import annotations

import re
from typing import Any, Final

import orjson
import pyarrow as pa

from lake.errors import Invalid
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.columns import attributes_of, conform, fill_identity
from lake.formats.documents import json_text, whole
from lake.formats.frames import Frame, stack_id, stacks_table
from lake.formats.pickles import load_plain
from lake.formats.process_groups import ProcessGroups
from lake.records import Identity

NAME: Final = "flight_recorder"
SCOPE: Final = "torch.flight_recorder"

Context = dict[str, str | None]
"""Columns that all rows of one dump share."""

_DTYPE_BYTES: Final = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz", "Float8_e8m0fnu"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "UInt32", "QInt32"), 4),
    **dict.fromkeys(("Long", "Double", "UInt64", "ComplexFloat"), 8),
    "ComplexHalf": 4,
    "ComplexDouble": 16,
}
_PEER: Final = re.compile(r"^(\w+) (\d{1,9})(?:->|<-)(\d{1,9})$")
_COLUMNS_OF_OWN: Final = frozenset(
    {
        *("process_group", "is_p2p", "state", "frames", "timeout_ms", "time_created_ns"),
        *("time_discovered_started_ns", "time_discovered_completed_ns"),
    }
)
_MAX_ATTRIBUTES: Final = 64
_LETTERS: Final = {bool: "b", int: "i", float: "d", str: "s"}
_PICKLE: Final = re.compile(rb"^\x80[\x02-\x05]")
_EMPTY_NAME: Final = re.compile(r"\.(pickle|pkl)$|nccl_trace_rank|flight_?recorder|_dump_\d+$")


def sniff(name: str, head: bytes) -> bool:
    """Whether it is a dump: a pickle or JSON object with its keys, or an empty file or pickle under its usual names."""
    named = bool(_EMPTY_NAME.search(name.lower()))
    if not head:
        return named
    if _PICKLE.match(head):
        return named or b"entries" in head or b"pg_config" in head
    text = head.lstrip()
    if not text.startswith(b"{") or b'"traceEvents"' in head or b'"schemaVersion"' in head:
        return False
    return (b'"pg_config"' in head and b'"version"' in head) or (
        b'"entries"' in head and b'"collective_seq_id"' in head
    )


def decode(source: Source) -> Decoded:
    """`collectives`, `stacks` and `metrics` rows and communicators of one dump.

    Raises:
        Invalid: it is no dump, or a pickle that needs more than plain values.
        LimitExceeded: it is larger or deeper than allowed.
    """
    if not len(source.data):
        return Decoded(identity=source.identity, empty=True)
    dump, cut = _load(source)
    problems = []
    if cut:
        problems.append(Problem(message="the dump is cut, entries before the cut were kept"))
    if not dump.get("version", "").startswith("2."):
        problems.append(Problem(message=f"dump version {dump.get('version')!r} is not known, read as 2.x"))
    entries = _entries(dump, problems)
    groups = ProcessGroups.of(dump.get("pg_config"), entries)
    identity = source.identity
    if groups.rank is not None and groups.rank != identity.rank_id:
        if identity.rank_id is not None:
            text = f"named rank {identity.rank_id}, but its process groups have only rank {groups.rank} in common"
            problems.append(Problem(message=f"{text}: rank {groups.rank} is used"))
        identity = Identity(rank_id=groups.rank).fill(identity)
    decoded = Decoded(identity=identity, problems=problems, salvaged=cut, empty=not entries)
    decoded.facts.extend(groups.facts(identity))
    context: Context = {"source": NAME, "evidence_ref": source.evidence_ref, "scope_name": SCOPE}
    context["scope_version"] = _text(dump.get("version"))
    if entries:
        decoded.tables |= _collectives(entries, groups, decoded, context)
    status = _status(dump, groups, entries)
    if status:
        decoded.tables["metrics"] = _metrics(status, context, identity)
    return decoded


def _load(source: Source) -> tuple[dict[str, Any], bool]:
    cut = False
    if _PICKLE.match(bytes(source.data[:2])):
        dump, cut = load_plain(source.data, max_depth=source.settings.max_depth)
    else:
        try:
            dump = orjson.loads(source.data)
        except orjson.JSONDecodeError as error:
            raise Invalid(f"flight recorder dump is neither a pickle nor whole JSON: {error}") from error
    if not isinstance(dump, dict) or not ("entries" in dump or "pg_config" in dump):
        raise Invalid("no flight recorder dump: it has neither entries nor pg_config")
    if not isinstance(dump.get("version", ""), str):
        dump["version"] = str(dump["version"])[:32]
    return dump, cut


def _entries(dump: dict[str, Any], problems: list[Problem]) -> list[dict[str, Any]]:
    listed = dump.get("entries", [])
    if not isinstance(listed, list):
        raise Invalid(f"entries of the flight recorder dump are a {type(listed).__name__}, not a list")
    entries = [e for e in listed if isinstance(e, dict) and isinstance(e.get("profiling_name"), str)]
    if len(entries) < len(listed):
        rejected = len(listed) - len(entries)
        problems.append(Problem(message=f"{rejected} entries have no profiling_name, left out", rejected=rejected))
    return entries


def _collectives(
    entries: list[dict[str, Any]], groups: ProcessGroups, decoded: Decoded, context: Context
) -> dict[str, pa.Table]:
    p2p = [entry.get("is_p2p") is True for entry in entries]
    operations = [_operation(entry["profiling_name"]) for entry in entries]
    names = [groups.name_of(entry) for entry in entries]
    stack_ids, stacks = _stacks(entries, context)
    created = _times(entries, "time_created_ns")
    timeouts = [whole(entry.get("timeout_ms")) for entry in entries]
    columns: dict[str, Any] = {
        **context,
        "communicator_id": pa.array(names, pa.string()),
        "ts": created,
        "seq": pa.array([_seq(entry, own) for entry, own in zip(entries, p2p, strict=True)], pa.int64()),
        "op": pa.array([operation for operation, _ in operations], pa.string()),
        "p2p": pa.array(p2p, pa.bool_()),
        "peer": pa.array(
            [groups.global_rank(name, peer) for name, (_, peer) in zip(names, operations, strict=True)], pa.int32()
        ),
        "dtype": pa.array([_dtype(entry) for entry in entries], pa.string()),
        "bytes": pa.array([_bytes(entry) for entry in entries], pa.int64()),
        "state": pa.array([_text(entry.get("state")) for entry in entries], pa.string()),
        "scheduled_at": created,
        "started_at": _times(entries, "time_discovered_started_ns"),
        "completed_at": _times(entries, "time_discovered_completed_ns"),
        "timeout_ns": pa.array([None if t is None else whole(t * 1_000_000) for t in timeouts], pa.int64()),
        "stack_id": pa.array(stack_ids, pa.string()),
    }
    columns["attributes"], columns["attribute_types"] = _attributes(entries, decoded.problems)
    fill_identity(columns, decoded.identity)
    tables = {"collectives": conform("collectives", columns, len(entries))}
    return tables | ({"stacks": stacks} if stacks is not None else {})


def _operation(profiling_name: str) -> tuple[str, int | None]:
    """(operation, peer's rank in its group) of `nccl:_all_gather_base` or `nccl:send 3->0`."""
    name = _text(profiling_name.partition(":")[2] or profiling_name) or ""
    match = _PEER.match(name)
    if match:
        return match[1], int(match[3])
    return name.removeprefix("_").removesuffix("_base"), None


def _seq(entry: dict[str, Any], p2p: bool) -> int | None:
    return whole(entry.get("p2p_seq_id") if p2p else entry.get("collective_seq_id", entry.get("seq_id")))


def _dtype(entry: dict[str, Any]) -> str | None:
    for side in ("input_dtypes", "output_dtypes"):
        dtypes = entry.get(side)
        if isinstance(dtypes, list) and dtypes:
            return ",".join(dict.fromkeys(_text(dtype) or "?" for dtype in dtypes))
    return None


def _bytes(entry: dict[str, Any]) -> int | None:
    """The larger side of the operation, as nccl-tests counts it (all-gather: output, reduce-scatter: input)."""
    sides = [_side_bytes(entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")) for side in ("input", "output")]
    known = [side for side in sides if side is not None]
    return max(known) if known else None


def _side_bytes(sizes: Any, dtypes: Any) -> int | None:
    if not isinstance(sizes, list) or not isinstance(dtypes, list) or len(sizes) != len(dtypes) or not sizes:
        return None
    total = 0
    for shape, dtype in zip(sizes, dtypes, strict=True):
        count = _DTYPE_BYTES.get(dtype) if isinstance(dtype, str) else None
        if count is None or not isinstance(shape, list):
            return None
        for size in shape:
            if type(size) is not int or size < 0 or count >= 1 << 63:
                return None
            count *= size
        total += count
    return whole(total)


def _stacks(entries: list[dict[str, Any]], context: Context) -> tuple[list[str | None], pa.Table | None]:
    """The stack id of every entry and the distinct stacks; torch writes the innermost frame first."""
    frames: dict[Frame, int] = {}
    stacks: dict[str, list[int]] = {}
    known: dict[tuple[int, ...], str] = {}
    ids: list[str | None] = []
    for entry in entries:
        listed = entry.get("frames")
        if not isinstance(listed, list) or not listed:
            ids.append(None)
            continue
        # frame objects are shared between entries and all alive, so their addresses identify them
        key = tuple(map(id, listed))
        found = known.get(key)
        if found is None:
            stack = [_frame(frame) for frame in reversed(listed)]
            found = known[key] = stack_id(frame.encoded() for frame in stack)
            stacks.setdefault(found, [frames.setdefault(frame, len(frames)) for frame in stack])
        ids.append(found)
    if not stacks:
        return ids, None
    return ids, stacks_table(list(frames), stacks, source=NAME, evidence_ref=str(context["evidence_ref"]))


def _frame(frame: Any) -> Frame:
    if not isinstance(frame, dict):
        return Frame()
    return Frame(function=_text(frame.get("name")), file=_text(frame.get("filename")), line=whole(frame.get("line")))


def _attributes(entries: list[dict[str, Any]], problems: list[Problem]) -> tuple[pa.Array, pa.Array]:
    keys = list(dict.fromkeys(key for entry in entries for key in entry if key not in _COLUMNS_OF_OWN))
    if len(keys) > _MAX_ATTRIBUTES:
        problems.append(Problem(message=f"{len(keys) - _MAX_ATTRIBUTES} unknown entry fields left out"))
        keys = keys[:_MAX_ATTRIBUTES]
    columns = {_text(key) or "": _attribute([entry.get(key) for entry in entries]) for key in keys}
    description = [_description(entry) for entry in entries]
    columns["process_group_description"] = ("s", pa.array(description, pa.string()))
    return attributes_of(columns, len(entries))


def _description(entry: dict[str, Any]) -> str | None:
    group = entry.get("process_group")
    return _text(group[1]) if isinstance(group, list | tuple) and len(group) > 1 else None


def _attribute(values: list[Any]) -> tuple[str, pa.Array]:
    kinds = {type(value) for value in values} - {type(None)}
    letter = _LETTERS.get(next(iter(kinds)), "j") if len(kinds) == 1 else "j"
    if letter in "bi" and all(value is None or whole(value) is not None or letter == "b" for value in values):
        return letter, pa.array(values).cast(pa.string())
    convert = _text if letter == "s" else json_text
    return letter, pa.array([None if value is None else convert(value) for value in values], pa.string())


def _status(
    dump: dict[str, Any], groups: ProcessGroups, entries: list[dict[str, Any]]
) -> list[tuple[str, str, str | None, int, int | None]]:
    """(metric, pg_id, communicator, value, time of the newest entry) of every counter in pg_status."""
    status = dump.get("pg_status")
    if not isinstance(status, dict):
        return []
    newest = max((t for entry in entries if (t := whole(entry.get("time_created_ns"))) is not None), default=None)
    names = groups.names_of_ids(list(status))
    return [
        (f"{SCOPE}.{_text(key)}", _text(pg_id) or "", names.get(pg_id), number, newest)
        for pg_id, counters in status.items()
        if isinstance(counters, dict)
        for key, value in counters.items()
        if (number := whole(value)) is not None
    ]


def _metrics(
    status: list[tuple[str, str, str | None, int, int | None]], context: Context, identity: Identity
) -> pa.Table:
    metric, pg_id, communicator, value, newest = (list(column) for column in zip(*status, strict=True))
    columns: dict[str, Any] = {
        **context,
        "name": pa.array(metric, pa.string()),
        "communicator_id": pa.array(communicator, pa.string()),
        "kind": "gauge",
        "value_int": pa.array(value, pa.int64()),
        "ts": pa.array(newest, pa.int64()),
    }
    columns["attributes"], columns["attribute_types"] = attributes_of(
        {"pg_id": ("s", pa.array(pg_id, pa.string()))}, len(status)
    )
    fill_identity(columns, identity)
    return conform("metrics", columns, len(status))


def _times(entries: list[dict[str, Any]], key: str) -> pa.Array:
    return pa.array([whole(entry.get(key)) for entry in entries], pa.int64())


def _text(value: Any) -> str | None:
    """Text fit for UTF-8; None for anything that is not text."""
    if not isinstance(value, str):
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


FORMAT: Final = Format(name=NAME, sniff=sniff, decode=decode)
