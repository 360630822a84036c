"""Incidents with their findings, and the verification tasks and actions that follow from them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields
from typing import Any, Final

import sqlalchemy as sa

from lake.catalog.facts import insert
from lake.catalog.tables import ACTIONS, EVIDENCE, FINDINGS, INCIDENTS, VERIFICATION_TASKS
from lake.errors import NotFound
from lake.records import Finding, Incident

_CHUNK: Final = 500
_TASK_STATUS: Final = {
    "suspected": "queued",
    "confirmed": "passed",
    "refuted": "failed",
    "inconclusive": "inconclusive",
}
"""Status of a verification finding → status of its task: a test passes when the proposition holds."""


def save(connection: sa.Connection, incident: Incident) -> None:
    """Store an incident in place of one with the same id.

    Its verification findings become tasks, and the advice in its document becomes proposed actions; those
    that somebody has acted on stay as they are. Evidence that it cites is bound to it.
    """
    own = {name: value for name, value in asdict(incident).items() if name != "findings"}
    statement = insert(connection, INCIDENTS)
    changes = {name: statement.excluded[name] for name in own if name != "incident_id"}
    connection.execute(statement.on_conflict_do_update(index_elements=["incident_id"], set_=changes), own)
    findings = [
        asdict(finding)
        | {
            "incident_id": incident.incident_id,
            "finding_no": number,
            "evidence_refs": list(finding.evidence_refs),
            "against": list(finding.against),
        }
        for number, finding in enumerate(incident.findings)
    ]
    connection.execute(FINDINGS.delete().where(FINDINGS.c.incident_id == incident.incident_id))
    if findings:
        connection.execute(FINDINGS.insert(), findings)
    _replace(connection, VERIFICATION_TASKS.c.status, "queued", incident.incident_id, _tasks(incident))
    _replace(connection, ACTIONS.c.state, "proposed", incident.incident_id, _actions(incident))
    _bind_evidence(connection, incident)


def _replace(
    connection: sa.Connection, state: sa.Column[Any], first: str, incident_id: str, rows: list[dict[str, Any]]
) -> None:
    """Replace the rows of an incident that are still in their first state."""
    table, untouched = state.table, state == first
    (key,) = table.primary_key
    kept = [row[key.name] for row in rows]
    connection.execute(table.delete().where(table.c.incident_id == incident_id, key.not_in(kept), untouched))
    statement = insert(connection, table)
    changes = {column.name: statement.excluded[column.name] for column in table.columns if column is not key}
    statement = statement.on_conflict_do_update(index_elements=[key], set_=changes, where=untouched)
    if rows:
        connection.execute(statement, sorted(rows, key=lambda row: row[key.name]))


def _bind_evidence(connection: sa.Connection, incident: Incident) -> None:
    refs = sorted({ref for finding in incident.findings for ref in finding.evidence_refs})
    unbound = EVIDENCE.update().where(EVIDENCE.c.bound_to.is_(None)).values(bound_to=f"incident:{incident.incident_id}")
    for start in range(0, len(refs), _CHUNK):
        connection.execute(unbound.where(EVIDENCE.c.evidence_ref.in_(refs[start : start + _CHUNK])))


def _tasks(incident: Incident) -> list[dict[str, Any]]:
    """Tests that were made (verification findings) and tests that the answer asks for (queued)."""
    rows = {}
    asked: list[tuple[str, str, str, str, str | None, list[str]]] = [
        (str(task.get("kind")), str(task.get("proposition")), str(task.get("subject")), "queued", None, [])
        for task in _document(incident).get("verification_tasks") or ()
    ]
    made = [
        (incident.kind, f.proposition, f.subject, _TASK_STATUS.get(f.status, "queued"), f.sql, list(f.evidence_refs))
        for f in incident.findings
        if f.kind == "verification"
    ]
    for kind, proposition, subject, status, sql, refs in asked + made:
        task_id = _id("vt", incident.incident_id, proposition, subject)
        rows[task_id] = {
            "task_id": task_id,
            "incident_id": incident.incident_id,
            "kind": kind,
            "proposition": proposition,
            "subject": subject,
            "status": status,
            "sql": sql,
            "evidence_refs": refs,
        }
    return list(rows.values())


def _document(incident: Incident) -> dict[str, Any]:
    try:
        document = json.loads(incident.document)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _actions(incident: Incident) -> list[dict[str, Any]]:
    document = _document(incident)
    retry, resume = document.get("retry") or {}, document.get("resume_from") or {}
    advice = [("exclude_device", device, document.get("cause")) for device in document.get("exclude_devices") or ()]
    if retry.get("advised"):
        advice.append(("retry", incident.run_id, retry.get("reason")))
    if resume.get("checkpoint_id"):
        advice.append(("resume_from", resume["checkpoint_id"], retry.get("reason")))
    return [
        {
            "action_id": _id("ac", incident.incident_id, kind, subject),
            "incident_id": incident.incident_id,
            "kind": kind,
            "subject": subject,
            "state": "proposed",
            "reason": reason,
        }
        for kind, subject, reason in advice
    ]


def _id(prefix: str, *parts: str) -> str:
    return f"{prefix}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}"


def load(connection: sa.Connection, incident_id: str) -> Incident:
    """A stored incident with its findings.

    Raises:
        NotFound: no such incident.
    """
    row = connection.execute(sa.select(INCIDENTS).where(INCIDENTS.c.incident_id == incident_id)).mappings().first()
    if row is None:
        raise NotFound(f"no incident {incident_id!r}: SELECT incident_id, run_id FROM incidents lists the stored ones")
    query = sa.select(FINDINGS).where(FINDINGS.c.incident_id == incident_id).order_by(FINDINGS.c.finding_no)
    return Incident(**row, findings=tuple(_finding(found) for found in connection.execute(query).mappings()))


def _finding(row: Any) -> Finding:
    lists = {name: tuple(row[name]) for name in ("evidence_refs", "against")}
    return Finding(**{field.name: row[field.name] for field in fields(Finding)} | lists)
