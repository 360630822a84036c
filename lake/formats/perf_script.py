"""Output of `perf script`: samples with their call chains, or one frame (or branch) a line as for Intel PT.

Layout: tools/perf/builtin-script.c of Linux. Times are seconds of the kernel's own clock; they fill `ts` only when they
are seconds since 1970 (`perf record -k CLOCK_REALTIME`), and are kept as the attribute `perf.time_ns` otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.errors import Invalid
from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.columns import attributes_of, conform, fill_identity
from lake.formats.hexadecimal import hex_numbers
from lake.formats.stacktable import frame_array, stack_rows
from lake.formats.texts import looks_like_text, split_lines

NAME: Final = "perf_script"

_HEADER: Final = (
    r"^\s*(?:(?P<comm>\S.*?)\s+)?(?:(?P<pid>-?\d{1,10})/)?(?P<tid>-?\d{1,10})\s+(?:\[(?P<cpu>\d{1,9})\]\s+)?"
    r"(?P<seconds>\d{1,10})\.(?P<fraction>\d{1,9}):\s+(?:(?P<period>\d{1,18})\s+)?"
    r"(?P<event>[^\s:]+(?::[^\s:]+)*):(?:\s+(?P<rest>.*?))?\s*$"
)
_PLACE: Final = r"(?P<address>[0-9a-fA-F]{1,16})\s+(?P<symbol>\S.*?)(?:\+0x[0-9a-fA-F]+)?(?:\s+\((?P<module>.*)\))?"
_FRAME: Final = rf"^\s+{_PLACE}\s*$"
_BRANCH: Final = (
    rf"^(?P<flags>[a-z][a-z ()]*?\s)?\s*{_PLACE.replace('.*)', '[^()]*(?:[(][^()]*[)])?[^()]*)')}"
    r"(?:\s+=>\s+(?P<to>[0-9a-fA-F]{1,16})\s+(?P<target>.*))?$"
)
_PLACE_OF_SOURCE: Final = r"^\s+(?P<file>\S.*):(?P<line>\d{1,9})$"
_HOST: Final = re.compile(r"^# hostname : (\S+)$", re.M)
_SNIFFED_LINES: Final = 400
_REALTIME_SECONDS: Final = 1_000_000_000
"""No machine has been up that long: larger times are seconds since 1970."""
_CLOCKS: Final = ("cpu-clock", "task-clock")


def sniff(name: str, head: bytes) -> bool:
    """Whether most lines are samples of `perf script` and frames, and some tell where the program was."""
    if not looks_like_text(head):
        return False
    lines = split_lines(head).values
    lines = lines[: len(lines) - 1] if len(head) >= 1 << 16 else lines
    spoken = lines.filter(pc.match_substring_regex(lines, r"^\s*[^#\s]"))[:_SNIFFED_LINES]
    header = pc.extract_regex(spoken, _HEADER)
    headers: int = len(spoken) - header.null_count
    frames = _count(pc.and_(pc.is_null(header), pc.match_substring_regex(spoken, _FRAME)))
    inline = _count(pc.match_substring_regex(pc.struct_field(header, "rest"), _BRANCH))
    return headers > 0 and (headers + frames) * 10 >= len(spoken) * 7 and frames + 2 * inline >= headers


def _count(flags: pa.BooleanArray) -> int:
    return pc.sum(flags).as_py() or 0


def decode(source: Source) -> Decoded:
    """One `samples` row a sample and one `stacks` row a distinct call chain.

    `sample_type` is the event, `value` its period with the unit `nanoseconds` for clocks and `events` for counters,
    1 and `samples` where there is no period. `thread` is command and thread id. Frames without a symbol keep address
    and module; `[unknown]` reads as null. Lines that are neither are reported and left out.

    Raises:
        Invalid: no line of it is a sample.
        LimitExceeded: 2 GiB of text or more.
    """
    text = split_lines(source.data)
    lines = text.values
    chunk = _Lines.of(lines)
    rows = len(chunk.headers)
    if not rows:
        raise Invalid(f"none of {len(lines)} lines is a sample of `perf script`")
    host = _HOST.search(bytes(source.data[: 1 << 16]).decode("utf-8", "replace"))
    decoded = Decoded(identity=source.identity)
    if host and source.identity.host_id is None:
        decoded.identity = replace(source.identity, host_id=host[1])
    if text.invalid:
        message = f"{text.invalid} bytes are not valid text, replaced by U+FFFD; the raw object keeps them"
        decoded.problems.append(Problem(message=message))
    if len(chunk.bad):
        message = f"{len(chunk.bad)} lines are no sample and no frame, left out (first: line {chunk.bad[0] + 1})"
        decoded.problems.append(Problem(message=message, rejected=len(chunk.bad)))
    header = pc.extract_regex(chunk.headers, _HEADER)
    columns, attributes = _columns(header)
    ids, stacks = _stacks(lines, chunk, pc.struct_field(header, "rest"), attributes, source.evidence_ref)
    columns |= {"stack_id": ids, "source": NAME, "evidence_ref": source.evidence_ref}
    columns["attributes"], columns["attribute_types"] = attributes_of(attributes, rows)
    fill_identity(columns, decoded.identity)
    decoded.tables["samples"] = conform("samples", columns, rows)
    if stacks.num_rows:
        decoded.tables["stacks"] = stacks
    return decoded


@dataclass(frozen=True, slots=True)
class _Lines:
    """What every line is: samples, frames with the sample each belongs to, places in the source, and others."""

    headers: pa.StringArray
    frames: npt.NDArray[np.int64]
    sample: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    bad: npt.NDArray[np.int64]

    @classmethod
    def of(cls, lines: pa.StringArray) -> _Lines:
        """The lines told apart; frames before the first sample are bad."""
        known = pc.dictionary_encode(lines)
        words = known.dictionary
        silent = pc.or_(pc.starts_with(words, "#"), pc.equal(pc.utf8_trim_whitespace(words), ""))
        header = pc.and_not(pc.match_substring_regex(words, _HEADER), silent)
        frame = pc.and_not(pc.match_substring_regex(words, _FRAME), pc.or_(header, silent))
        place = pc.and_not(pc.match_substring_regex(words, _PLACE_OF_SOURCE), pc.or_(pc.or_(header, frame), silent))
        kinds = np.select([np.asarray(flag) for flag in (silent, header, frame, place)], [0, 1, 2, 3], 4)
        kind = kinds[np.asarray(known.indices)]
        sample = np.cumsum(kind == 1) - 1
        kind[(sample < 0) & (kind > 1)] = 4
        # A place belongs to the frame on the line before it.
        kind[1:][(kind[1:] == 3) & (kind[:-1] != 2)] = 4
        frames = np.flatnonzero(kind == 2)
        return cls(
            lines.filter(pa.array(kind == 1)),
            frames,
            sample[frames],
            np.flatnonzero(kind == 3),
            np.flatnonzero(kind == 4),
        )


def _columns(header: pa.StructArray) -> tuple[dict[str, Any], dict[str, tuple[str, Any]]]:
    comm, pid, tid, event = (_field(header, name) for name in ("comm", "pid", "tid", "event"))
    seconds = pc.struct_field(header, "seconds").cast(pa.int64())
    fraction = pc.utf8_rpad(pc.struct_field(header, "fraction"), 9, "0").cast(pa.int64())
    time = pc.add(pc.multiply(seconds, 1_000_000_000), fraction)
    since_1970 = pc.and_(pc.greater_equal(seconds, _REALTIME_SECONDS), pc.less(seconds, 9_000_000_000))
    period = _field(header, "period").cast(pa.int64())
    clock = pc.is_in(pc.replace_substring_regex(event, ":.*", ""), pa.array(_CLOCKS))
    unit = pc.if_else(clock, "nanoseconds", "events")
    columns = {
        "ts": pc.if_else(since_1970, time, None),
        "value": pc.fill_null(period, 1),
        "sample_type": event,
        "unit": pc.if_else(pc.is_valid(period), unit, "samples"),
        "thread": pc.coalesce(pc.binary_join_element_wise(comm, tid, " "), tid),
    }
    attributes = {
        "perf.time_ns": ("i", pc.if_else(since_1970, None, time)),
        "process.pid": ("i", pid),
        "thread.id": ("i", tid),
        "thread.name": ("s", comm),
        "cpu.logical_number": ("i", pc.cast(_field(header, "cpu").cast(pa.int64()), pa.string())),
    }
    return columns, attributes


def _field(match: pa.StructArray, name: str) -> pa.StringArray:
    """A group of a match, null where it did not take part."""
    found = pc.struct_field(match, name)
    return pc.if_else(pc.equal(found, ""), None, found)


def _stacks(
    lines: pa.StringArray, chunk: _Lines, rest: pa.StringArray, attributes: dict[str, tuple[str, Any]], evidence: str
) -> tuple[pa.StringArray, pa.Table]:
    """The stack of every sample and the `stacks` table; what is told of branches goes into `attributes`."""
    known = pc.dictionary_encode(lines.take(pa.array(chunk.frames)))
    written = _frames(pc.extract_regex(known.dictionary, _FRAME))
    numbers = np.asarray(known.indices).astype(np.int64)
    if len(chunk.places):
        written, numbers = _with_places(lines, chunk, (written, numbers))
    chained = np.bincount(chunk.sample, minlength=len(rest)) > 0
    inline = pc.extract_regex(pc.if_else(pa.array(chained), None, rest), _BRANCH)
    alone = np.flatnonzero(np.asarray(inline.is_valid()))
    attributes["branch.flags"] = ("s", _trimmed(inline, "flags"))
    attributes["branch.to.address"] = ("s", _field(inline, "to"))
    attributes["branch.to.symbol"] = ("s", _trimmed(inline, "target"))
    told = pc.is_valid(inline)
    attributes["perf.event.text"] = ("s", pc.if_else(pc.or_(told, pc.equal(rest, "")), None, rest))
    single = _frames(inline.take(pa.array(alone)))
    frames = pa.concat_arrays([written, single])
    owner = np.concatenate([chunk.sample, alone])
    index = np.concatenate([numbers, len(written) + np.arange(len(alone))])
    # Call chains are written leaf first.
    order = np.lexsort((-np.arange(len(owner)), owner))
    offsets = np.zeros(len(rest) + 1, np.int64)
    np.cumsum(np.bincount(owner, minlength=len(rest)), out=offsets[1:])
    return stack_rows(frames, offsets, index[order], source=NAME, evidence_ref=evidence)


def _trimmed(match: pa.StructArray, name: str) -> pa.StringArray:
    text = pc.utf8_trim_whitespace(pc.struct_field(match, name))
    return pc.if_else(pc.equal(text, ""), None, text)


def _frames(match: pa.StructArray) -> pa.StructArray:
    symbol, module = _field(match, "symbol"), _field(match, "module")
    module = pc.if_else(pc.is_in(module, pa.array(["[unknown]", "inlined"])), None, module)
    return frame_array(
        len(match),
        function=pc.if_else(pc.equal(symbol, "[unknown]"), None, symbol),
        module=module,
        address=hex_numbers(pc.struct_field(match, "address")),
    )


def _with_places(
    lines: pa.StringArray, chunk: _Lines, frames: tuple[pa.StructArray, npt.NDArray[np.int64]]
) -> tuple[pa.StructArray, npt.NDArray[np.int64]]:
    """Frames, one for each line, with the file and line number that follow them."""
    array, numbers = frames
    match = pc.extract_regex(lines.take(pa.array(chunk.places)), _PLACE_OF_SOURCE)
    where = np.full(len(chunk.frames), -1, np.int64)
    where[np.searchsorted(chunk.frames, chunk.places - 1)] = np.arange(len(chunk.places))
    at = pa.array(where, mask=where < 0)
    fields = dict(zip((field.name for field in array.type), array.take(pa.array(numbers)).flatten(), strict=True))
    fields["file"] = pc.struct_field(match, "file").take(at)
    fields["line"] = pc.struct_field(match, "line").cast(pa.int64()).take(at)
    return frame_array(len(numbers), **fields), np.arange(len(numbers))


FORMAT: Final = Format(name=NAME, sniff=sniff, decode=decode)
