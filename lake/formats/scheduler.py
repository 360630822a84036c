"""Scheduler events: when each attempt started, from which checkpoint, when it ended and how."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from lake.formats.base import Decoded, Format, Problem, Source
from lake.formats.columns import attributes_of, conform, fill_identity
from lake.formats.documents import json_text, load_objects, text, whole
from lake.records import Attempt

NAME: Final = "scheduler"


def sniff(name: str, head: bytes) -> bool:
    """Whether it is JSON of attempt events."""
    start = head.lstrip()[:1]
    return start in (b"[", b"{") and b'"event"' in head and b'"attempt_id"' in head and b'"attempt.' in head


def decode(source: Source) -> Decoded:
    """One `logs` row per event (so that it can be cited) and one attempt fact per attempt.

    The run comes from the source: the events do not name it. Without it there are rows but no facts.

    Raises:
        Invalid: it is not whole JSON or not a list of objects.
    """
    events = load_objects(source.data, "scheduler events")
    decoded = Decoded(identity=source.identity, empty=not events)
    if not events:
        return decoded
    decoded.tables["logs"] = _logs(events, source)
    run_id = source.identity.run_id
    if run_id is None:
        decoded.problems.append(Problem(message="the run is not known, attempts not recorded: name it with --run"))
        return decoded
    attempts: dict[int, Attempt] = {}
    for event in events:
        attempt_id = whole(event.get("attempt_id"), 32)
        if attempt_id is not None:
            known = attempts.get(attempt_id) or Attempt(run_id=run_id, attempt_id=attempt_id)
            attempts[attempt_id] = _with_event(known, event)
    decoded.facts.extend(attempts.values())
    return decoded


def _with_event(attempt: Attempt, event: dict[str, Any]) -> Attempt:
    """The attempt with what one event adds."""
    name, ts = event.get("event"), whole(event.get("t", event.get("ts")))
    if name == "attempt.start":
        resumed_from = text(event.get("resume")) or text(event.get("resumed_from"))
        return replace(attempt, started_at=ts, resumed_from=resumed_from, state=attempt.state or "running")
    if name == "attempt.exit":
        exit_code = whole(event.get("exit_code"), 32)
        state = None if exit_code is None else "finished" if exit_code == 0 else "errored"
        return replace(attempt, ended_at=ts, exit_code=exit_code, state=state, end_reason=text(event.get("reason")))
    return attempt


def _logs(events: list[dict[str, Any]], source: Source) -> pa.Table:
    keys = list(dict.fromkeys(key for event in events for key in event))[: source.settings.max_attributes]
    columns: dict[str, Any] = {
        "source": NAME,
        "evidence_ref": source.evidence_ref,
        "attempt_id": pa.array([whole(event.get("attempt_id"), 32) for event in events], pa.int32()),
        "ts": pa.array([whole(event.get("t", event.get("ts"))) for event in events], pa.int64()),
        "event_name": pa.array([text(event.get("event")) for event in events], pa.string()),
        "body": pa.array([json_text(event) for event in events], pa.string()),
        "body_type": "j",
    }
    columns["attributes"], columns["attribute_types"] = attributes_of(
        {key: _attribute([event.get(key) for event in events]) for key in keys}, len(events)
    )
    fill_identity(columns, replace(source.identity, rank_id=None))
    return conform("logs", columns, len(events))


def _attribute(values: list[Any]) -> tuple[str, pa.Array]:
    kinds = {type(value) for value in values if value is not None}
    letter = {frozenset([str]): "s", frozenset([int]): "i"}.get(frozenset(kinds), "j")
    texts = [value if letter == "s" or value is None else json_text(value) for value in values]
    return letter, pa.array(texts, pa.string())


FORMAT: Final = Format(name=NAME, sniff=sniff, decode=decode)
