"""A trace from bytes to tables: the steps of decoding in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lake.errors import Invalid
from lake.formats.base import Decoded, Problem, Source
from lake.formats.chrome import collectives, slices, tokens
from lake.formats.chrome.collectives import facts_of, identity_of
from lake.formats.chrome.envelope import Envelope, read_envelope
from lake.formats.chrome.events import build_events
from lake.formats.chrome.scan import Scanner
from lake.formats.chrome.tables import NAME_ARGS, PART_ROWS, Tables

_KEPT: Final = frozenset({*slices.ARGS, *collectives.ARGS, *NAME_ARGS})
"""Members of events that are looked up; all others are only copied."""
_UTF8_PIECE: Final = 1 << 24


def decode_trace(source: Source, *, kineto: bool) -> Decoded:
    """The tables of one trace in the Trace Event format (Chrome) or in PyTorch's use of it (`kineto`).

    `spans` has a row per complete event, begin/end pair, async pair, instant, object event and sample; `flows` one per
    arrow; `metrics` one per counter value; `collectives` one per numbered collective kernel.

    Raises:
        Invalid: the content is no trace or holds no event.
    """
    decoded = Decoded()
    buffer = _utf8(source, decoded.problems)
    limits = source.settings
    scanner = Scanner(buffer, (limits.max_depth, limits.max_attributes), _KEPT, source.release)
    envelope = read_envelope(buffer, scanner)
    _report(envelope, scanner, decoded)
    events = build_events(envelope, scanner, decoded.problems)
    metadata: dict[str, Any] = {}
    for document in envelope.documents:
        metadata = {**document.metadata, **metadata}
    decoded.identity = identity_of(metadata).fill(source.identity)
    decoded.facts = facts_of(metadata, decoded.identity)
    parts = Tables(source, events, decoded, kineto=kineto).parts()
    if source.in_parts and scanner.events > PART_ROWS:
        decoded.parts = parts
        return decoded
    found: defaultdict[str, list[pa.Table]] = defaultdict(list)
    for table, part in parts:
        found[table].append(part)
    decoded.tables = {table: pa.concat_tables(some) for table, some in found.items()}
    decoded.empty = not decoded.tables and not decoded.rejected
    return decoded


def _utf8(source: Source, problems: list[Problem]) -> npt.NDArray[np.uint8]:
    """The bytes, every invalid UTF-8 sequence replaced; read-only."""
    view = memoryview(source.data).cast("B")
    if not _is_utf8(view, source.release):
        text = bytes(view).decode("utf-8", "replace")
        problems.append(Problem(message="the file is not valid UTF-8; every invalid sequence was read as U+FFFD"))
        view = memoryview(text.encode("utf-8"))
    buffer = np.frombuffer(view, np.uint8)
    buffer.flags.writeable = False
    return buffer


def _is_utf8(view: memoryview, release: Callable[[], None]) -> bool:
    start = 0
    while start < len(view):
        end = min(start + _UTF8_PIECE, len(view))
        while end < len(view) and end > start + _UTF8_PIECE - 4 and view[end] & 0xC0 == 0x80:
            end -= 1
        try:
            str(view[start:end], "utf-8")
        except UnicodeDecodeError:
            return False
        start = end
        release()
    return True


def _report(envelope: Envelope, scanner: Scanner, decoded: Decoded) -> None:
    """Add what the scan met to the problems.

    Raises:
        Invalid: not a single event was found and the arrays were not empty either.
    """
    state = [int(value) for value in scanner.state]
    strangers = state[tokens.NO_PHASE] + state[tokens.NOT_OBJECT]
    if not scanner.events and strangers + state[tokens.TOO_DEEP] + state[tokens.TOO_MANY] + state[tokens.BROKEN]:
        raise Invalid(
            f"no trace: none of the {strangers or 'broken'} elements of the event array is an event with a phase `ph`"
        )
    for column, text in (
        (tokens.NO_PHASE, "objects without a phase `ph`"),
        (tokens.NOT_OBJECT, "elements that are no objects"),
        (tokens.TOO_DEEP, "events nested deeper than the limit"),
        (tokens.TOO_MANY, "events with more members than the limit"),
    ):
        if state[column]:
            decoded.problems.append(Problem(message=f"{state[column]} {text} were not taken", rejected=state[column]))
    if state[tokens.BROKEN]:
        decoded.salvaged = True
        message = (
            f"broken JSON at byte {state[tokens.FIRST_BROKEN]}: {state[tokens.BROKEN]} events were not taken, "
            f"the other {scanner.events} were kept"
        )
        decoded.problems.append(Problem(message=message, rejected=state[tokens.BROKEN]))
    elif envelope.cut_at is not None:
        decoded.salvaged = True
        message = f"the document ends early at byte {envelope.cut_at}; all {scanner.events} events before it were kept"
        decoded.problems.append(Problem(message=message))
