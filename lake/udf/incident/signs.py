"""What speaks of a crash: device errors, deaths by signal, exceptions of a rank's own, and what the launcher saw."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from typing import Final

from lake.records import Finding
from lake.udf.incident.answer import Culprit, Victim
from lake.udf.incident.scope import Row, Scope, finding
from lake.xids import CRITICAL_XIDS

_WAITED: Final = re.compile(
    r"connection (closed|reset|refused)|timed? ?out|watchdog caught collective|broken pipe|remote process|"
    r"ncclremoteerror|socket|peer .*(gone|closed)|heartbeat",
    re.IGNORECASE,
)
_TEARDOWN_SIGNALS: Final = ("15", "SIGTERM", "-15", "143")


@dataclass(slots=True)
class Stop:
    """What one stopped attempt shows."""

    attempt_id: int
    cause: str = "unknown"
    culprits: list[Culprit] = field(default_factory=list)
    suspects: list[Culprit] = field(default_factory=list)
    """ranks of which one stood still and the others waited for it, when nothing tells them apart: nobody is accused"""
    victims: list[Victim] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    signal: str | None = None
    """what the launcher saw of the culprit, e.g. SIGKILL"""
    torn_down: set[int] = field(default_factory=set)
    """ranks that the launcher ended"""


def exit_finding(scope: Scope, stop: Stop) -> None:
    """Note how the scheduler saw the attempt end, when it says so."""
    sql = (
        "SELECT attempt_id, event_name, ts, attributes['exit_code'] AS exit_code, evidence_ref FROM logs "
        f"WHERE {scope.where(stop.attempt_id)} AND source = 'scheduler' AND event_name = 'attempt.exit'"
    )
    rows = scope.rows(sql)
    if rows:
        code = rows[0]["exit_code"]
        by = _signal_of(code)
        stop.findings.append(
            finding(
                "observation",
                f"attempt {stop.attempt_id}",
                "confirmed",
                f"attempt {stop.attempt_id} ended with exit code {code}" + (f", by {by}" if by else ""),
                sql,
                evidence_refs=scope.refs(sql),
            )
        )


def device_errors(scope: Scope, stop: Stop, errors: list[Row]) -> set[int]:
    """Ranks on whose device a condemning XID was logged; the first is noted as a finding."""
    sql = (
        "SELECT rank_id, gpu_uuid, host_id, step_id, ts, arrow_cast(ts, 'Int64') AS ts_ns, attributes['xid'] AS xid, "
        "body, evidence_ref FROM logs "
        f"WHERE {scope.where(stop.attempt_id)} AND event_name = 'gpu.xid' ORDER BY ts"
    )
    rows = scope.rows(sql)
    critical = [row for row in rows if str(row["xid"]).isdigit() and int(row["xid"]) in CRITICAL_XIDS]
    for row in critical[:1]:
        stop.signal = f"XID {row['xid']}"
        earlier = [e["rank_id"] for e in errors if e["ts"] < row["ts_ns"] and e["rank_id"] != row["rank_id"]]
        stop.findings.append(
            finding(
                "observation",
                str(row["gpu_uuid"]),
                "confirmed",
                f"XID {row['xid']} was logged on {row['gpu_uuid']} (rank {row['rank_id']}, {row['host_id']}) "
                f"at step {row['step_id']}" + ("" if earlier else ", before any other rank said that it failed"),
                sql,
                evidence_refs=scope.refs(sql),
                against=(f"ranks {earlier} had said before that they failed",) if earlier else (),
            )
        )
    return {row["rank_id"] for row in critical if row["rank_id"] is not None}


def killed(scope: Scope, stop: Stop) -> set[int]:
    """Ranks that the launcher saw die first and by a signal that is no teardown; what it saw is noted."""
    sql = (
        "SELECT rank_id, event_name, attributes['exitcode'] AS exitcode, attributes['signal'] AS signal, evidence_ref "
        f"FROM logs WHERE {scope.where(stop.attempt_id)} AND event_name IN ('torchelastic.root_cause', "
        "'torchelastic.failure')"
        " ORDER BY event_name DESC, rank_id"
    )
    rows = scope.rows(sql)
    roots = [r for r in rows if r["event_name"] == "torchelastic.root_cause" and r["rank_id"] is not None]
    for row in roots:
        row["signal"] = row["signal"] or _signal_of(row["exitcode"])
    dead = [r for r in roots if r["signal"] and not {r["signal"], r["exitcode"]} & set(_TEARDOWN_SIGNALS)]
    torn = sorted(r["rank_id"] for r in rows if r["exitcode"] in _TEARDOWN_SIGNALS and r["rank_id"] is not None)
    stop.torn_down |= set(torn)
    if rows:
        text = (
            "; ".join(f"rank {r['rank_id']} {r['signal'] or 'exit ' + str(r['exitcode'])}" for r in roots)
            or "no first failure named"
        )
        stop.findings.append(
            finding(
                "observation",
                f"attempt {stop.attempt_id}",
                "confirmed",
                f"the launcher saw first: {text}; torn down by it: ranks {torn}"
                if torn
                else f"the launcher saw first: {text}",
                sql,
                evidence_refs=scope.refs(sql),
            )
        )
    if dead and stop.signal is None:
        stop.signal = str(dead[0]["signal"])
        stop.missing.append(
            f"attempt {stop.attempt_id}: no device error and no kernel log says why {stop.signal} came: the device, "
            "memory that ran out, or somebody from outside"
        )
    return {row["rank_id"] for row in dead}


def _signal_of(exitcode: str | None) -> str | None:
    """The signal an exit status stands for: -9 (Python) and 137 (a shell) are SIGKILL; None for a plain exit."""
    number = int(exitcode or 0)
    number = -number if number < 0 else number - 128
    return signal.Signals(number).name if number in {*signal.Signals} else None


def own_reports(scope: Scope, attempt: int) -> list[Row]:
    """What ranks said of their own end, oldest first."""
    return scope.rows(
        "SELECT rank_id, step_id, arrow_cast(ts, 'Int64') AS ts, attributes['exception.type'] AS type, "
        "coalesce(attributes['exception.message'], body) AS message, evidence_ref FROM logs "
        f"WHERE {scope.where(attempt)} AND event_name = 'attempt.failed' ORDER BY ts"
    )


def own_errors(stop: Stop, scope: Scope, errors: list[Row]) -> list[int]:
    """Ranks that failed first with an exception which no waiting explains, all with the same; noted as a finding."""
    own = [row for row in errors if not _WAITED.search(row["message"] or "") and row["rank_id"] is not None]
    if not own:
        return []
    first = own[0]
    ranks = sorted({row["rank_id"] for row in own if _same_error(row, first)})
    stop.signal = _error_text(first)
    sql = (
        "SELECT rank_id, step_id, ts, body, evidence_ref FROM logs "
        f"WHERE {scope.where(stop.attempt_id)} AND event_name = 'attempt.failed' "
        f"AND rank_id IN ({', '.join(map(str, ranks))}) ORDER BY ts"
    )
    later = sorted({row["rank_id"] for row in own} - set(ranks))
    text = (
        f"rank {first['rank_id']} failed first with an error of its own: {stop.signal}"
        if len(ranks) == 1
        else f"ranks {ranks} failed with the same error of their own: {stop.signal}"
    )
    stop.findings.append(
        finding(
            "observation",
            ", ".join(f"rank {rank}" for rank in ranks),
            "confirmed",
            text,
            sql,
            evidence_refs=scope.refs(sql),
            against=(f"ranks {later} failed after it with other errors of their own",) if later else (),
        )
    )
    return ranks


def _same_error(row: Row, first: Row) -> bool:
    return (row["type"], row["step_id"], _error_text(row)) == (first["type"], first["step_id"], _error_text(first))


def _error_text(row: Row) -> str:
    lines = (row["message"] or "").splitlines() or [""]
    return f"{row['type'] or 'error'}: {lines[0][:120]}"
