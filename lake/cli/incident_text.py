"""An incident's answer document as text that a person on call reads from top to bottom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]
_HEADLINE = {
    "stopped": "the run stopped",
    "slow": "the run was slow",
    "wrong": "the run computed something wrong",
    "none": "nothing wrong was found in the data there is",
}


def incident_text(document: Document) -> str:
    """The chain: what, when, who first, who waited, what to do, and every finding with its SQL and evidence."""
    return "\n".join(_lines(document)) + "\n"


def _lines(doc: Document) -> Iterator[str]:
    attempts = ", ".join(map(str, doc["attempts"])) or "–"
    yield f"{doc['run_id']}: {_HEADLINE[doc['kind']]}   [{doc['incident_id']}]"
    yield f"  kind {doc['kind']}, cause {doc['cause']}, attempts {attempts}"
    window = doc["window"]
    if window["step_from"] is not None:
        times = f"{window['ts_from'] or '?'} … {window['ts_to'] or '?'}"
        yield f"  window   steps {window['step_from']}–{window['step_to']}   {times}"
    yield from _culprits(doc)
    yield from _victims(doc)
    yield from _recovery(doc)
    yield ""
    yield "  findings"
    for number, finding in enumerate(doc["findings"], 1):
        yield from _finding(number, finding)
    if doc["missing"]:
        yield "  not known (missing data is not health)"
        yield from (f"    - {text}" for text in doc["missing"])
    if doc["verification_tasks"]:
        yield "  would settle it"
        yield from (f"    - {t['kind']} on {t['subject']}: {t['proposition']}" for t in doc["verification_tasks"])


def _culprits(doc: Document) -> Iterator[str]:
    for c in doc["culprits"]:
        place = f"attempt {c['attempt_id']} rank {c['rank_id']} on {c['host_id'] or '?'} device {c['gpu_uuid'] or '?'}"
        doing = " / ".join(dict.fromkeys(filter(None, (c["phase"], c["operation"]))))
        yield f"  first    {place}, step {c['since_step'] if c['since_step'] is not None else '?'}: {doing}"
    divergence = doc["first_divergence"]
    if divergence:
        yield f"  tensor   {divergence['tensor']} (seq {divergence['seq']}) at step {divergence['step_id']}"


def _victims(doc: Document) -> Iterator[str]:
    for v in doc["victims"]:
        waits = f"waits for rank {v['waits_for']}" if v["waits_for"] is not None else "waits for an unknown rank"
        via = f" in {v['operation']}" if v["operation"] else ""
        state = {"waited": "", "failed_waiting": ", failed because of it", "torn_down": ", then torn down"}[v["state"]]
        yield f"  victim   attempt {v['attempt_id']} rank {v['rank_id']} {waits}{via}{state}"


def _recovery(doc: Document) -> Iterator[str]:
    if doc["kind"] in ("stopped", "wrong"):
        yield f"  exclude  {', '.join(doc['exclude_devices']) or 'no device'}"
        yield f"  retry    {'yes' if doc['retry']['advised'] else 'no'}: {doc['retry']['reason']}"
        resume = doc["resume_from"]
        if resume:
            yield f"  resume   attempt {resume['attempt_id']}, {resume['checkpoint_id']} (step {resume['step_id']})"
    for c in doc["checkpoints"]:
        yield f"  checkpoint  attempt {c['attempt_id']} {c['checkpoint_id']}: {c['trust']} – {c['reason']}"


def _finding(number: int, finding: Document) -> Iterator[str]:
    yield f"    {number}. {finding['kind']}, {finding['status']}: {finding['proposition']}"
    yield f"       sql       {finding['sql']}"
    if finding["evidence_refs"]:
        shown = finding["evidence_refs"][:6]
        more = len(finding["evidence_refs"]) - len(shown)
        yield f"       evidence  {' '.join(shown)}" + (f" and {more} more" if more else "")
    for text in finding["against"]:
        yield f"       against   {text}"
