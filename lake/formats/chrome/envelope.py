"""The document around the events: where the event arrays are, and the other top-level members."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lake.errors import Invalid
from lake.formats.chrome.scan import Scanner
from lake.formats.chrome.tokens import skip_blank, skip_string, skip_value

_DEPTH: Final = 64
_KEPT: Final = frozenset({"baseTimeNanoseconds", "distributedInfo", "host_name"})
_MAX_KEPT_BYTES: Final = 64 << 20
_NO_TRACE: Final = "no trace: expected an object with `traceEvents` or an array of events with a phase `ph`"


@dataclass(slots=True, kw_only=True)
class Document:
    """One JSON document of the file: its events are `first_event:end_event` of the scan."""

    first_event: int
    end_event: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    """the top-level members that say when, where and by whom it was recorded"""


@dataclass(slots=True, kw_only=True)
class Envelope:
    """What the file's outer structure held."""

    documents: list[Document] = field(default_factory=list)
    cut_at: int | None = None
    """byte where the structure broke off, None when it was whole"""


def read_envelope(buffer: npt.NDArray[np.uint8], scanner: Scanner) -> Envelope:
    """Walk the outer structure, handing every event array to `scanner`; documents may follow one another.

    Raises:
        Invalid: there is neither an object with `traceEvents` nor an array at the top.
    """
    envelope = Envelope()
    n = len(buffer)
    i = skip_blank(buffer, 3 if bytes(buffer[:3]) == b"\xef\xbb\xbf" else 0, n)
    while i < n and envelope.cut_at is None:
        document = Document(first_event=scanner.events)
        if buffer[i] == ord("["):
            i, closed = scanner.array(i)
            envelope.cut_at = None if closed else i
            found = True
        elif buffer[i] == ord("{"):
            i, found = _object(buffer, i, scanner, document, envelope)
        else:
            found = False
        if not found and not envelope.documents:
            raise Invalid(_NO_TRACE)
        if not found:
            envelope.cut_at = i
            break
        document.end_event = scanner.events
        envelope.documents.append(document)
        i = skip_blank(buffer, i, n)
    if not envelope.documents:
        raise Invalid(_NO_TRACE)
    return envelope


def _object(
    buffer: npt.NDArray[np.uint8], i: int, scanner: Scanner, document: Document, envelope: Envelope
) -> tuple[int, bool]:
    n = len(buffer)
    found = False
    i = skip_blank(buffer, i + 1, n)
    while i < n and buffer[i] != ord("}"):
        if buffer[i] == ord(","):
            i = skip_blank(buffer, i + 1, n)
            continue
        key_start, i = i, skip_string(buffer, i, n) if buffer[i] == ord('"') else -1
        if i > 0:
            key = bytes(buffer[key_start + 1 : i - 1]).decode("utf-8", "replace")
            i = skip_blank(buffer, i, n)
            i = skip_blank(buffer, i + 1, n) if i < n and buffer[i] == ord(":") else -1
        if 0 < i < n and key == "traceEvents" and buffer[i] == ord("["):
            found = True
            i, closed = scanner.array(i)
            if not closed:
                envelope.cut_at = i
                return i, found
        elif i > 0:
            start, i = i, skip_value(buffer, i, n, _DEPTH)
            if i > 0 and key in _KEPT and i - start <= _MAX_KEPT_BYTES:
                _keep(document, key, buffer[start:i])
        if i < 0:
            envelope.cut_at = key_start
            return key_start, found
        i = skip_blank(buffer, i, n)
    if i >= n:
        envelope.cut_at = n
    return i + 1, found


def _keep(document: Document, key: str, text: npt.NDArray[np.uint8]) -> None:
    try:
        document.metadata[key] = json.loads(text.tobytes())
    except (ValueError, RecursionError):
        return
