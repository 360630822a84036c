"""An incident's answer document as text that a person on call reads from top to bottom."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

Document = dict[str, Any]
Item = tuple[str, str]
"""What stands before a text, and the text, which wraps under itself."""

WIDTH: Final = 118
_SHOWN_REFS: Final = 3
_HEADLINE: Final = {
    "stopped": "the run stopped",
    "slow": "the run was slow",
    "wrong": "the run computed something wrong",
    "none": "nothing wrong was found in the data there is",
}
_STATE: Final = {"waited": "", "failed_waiting": ", failed because of it", "torn_down": ", then torn down"}


def incident_text(document: Document, width: int = WIDTH) -> str:
    """The chain: what, when, who first, who waited, what to do, and every finding with its SQL and evidence."""
    lines = []
    for before, text in _items(document):
        wrapped = textwrap.wrap(text, width - len(before), break_long_words=False, break_on_hyphens=False)
        lines += [(before if n == 0 else " " * len(before)) + line for n, line in enumerate(wrapped or [""])]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _items(doc: Document) -> Iterator[Item]:
    yield "", f"{doc['run_id']}: {_HEADLINE[doc['kind']]}   [{doc['incident_id']}]"
    attempts = ", ".join(map(str, doc["attempts"])) or "–"
    yield "  what        ", f"{doc['kind']}, cause {doc['cause']}, attempt {attempts}"
    window = doc["window"]
    if window["step_from"] is not None:
        times = f"{window['ts_from'] or '?'} … {window['ts_to'] or '?'}"
        yield "  window      ", f"steps {window['step_from']}–{window['step_to']}, {times}"
    yield from _culprits(doc)
    yield from _victims(doc)
    yield from _recovery(doc)
    yield "", ""
    yield "", "findings"
    for number, finding in enumerate(doc["findings"], 1):
        yield from _finding(number, finding)
    if doc["missing"]:
        yield "", "not known (missing data is not health)"
        yield from (("  - ", text) for text in doc["missing"])
    if doc["verification_tasks"]:
        yield "", "would settle it"
        yield from (("  - ", f"{t['kind']} on {t['subject']}: {t['proposition']}") for t in doc["verification_tasks"])


def _culprits(doc: Document) -> Iterator[Item]:
    for c in doc["culprits"]:
        step = c["since_step"] if c["since_step"] is not None else "?"
        doing = " / ".join(dict.fromkeys(filter(None, (c["phase"], c["operation"])))) or "operation unknown"
        place = f"attempt {c['attempt_id']} rank {c['rank_id']} on {c['host_id'] or '?'}, {c['gpu_uuid'] or 'device ?'}"
        yield "  first       ", f"{place}, step {step}: {doing}"
    divergence = doc["first_divergence"]
    if divergence:
        yield "  tensor      ", f"{divergence['tensor']} (seq {divergence['seq']}) at step {divergence['step_id']}"


def _victims(doc: Document) -> Iterator[Item]:
    for v in doc["victims"]:
        waits = f"waits for rank {v['waits_for']}" if v["waits_for"] is not None else "waits for an unknown rank"
        via = f" in {v['operation']}" if v["operation"] else ""
        yield "  victim      ", f"attempt {v['attempt_id']} rank {v['rank_id']} {waits}{via}{_STATE[v['state']]}"


def _recovery(doc: Document) -> Iterator[Item]:
    if doc["kind"] in ("stopped", "wrong"):
        yield "  exclude     ", ", ".join(doc["exclude_devices"]) or "no device"
        yield "  retry       ", f"{'yes' if doc['retry']['advised'] else 'no'}: {doc['retry']['reason']}"
        resume = doc["resume_from"]
        if resume:
            where = f"attempt {resume['attempt_id']}, {resume['checkpoint_id']} (step {resume['step_id']})"
            yield "  resume      ", where
    for (trust, reason), group in groupby(doc["checkpoints"], key=lambda c: (c["trust"], c["reason"])):
        names = ", ".join(f"({c['attempt_id']}, {c['checkpoint_id']})" for c in group)
        yield "  checkpoint  ", f"{names} {trust}: {reason}"


def _finding(number: int, finding: Document) -> Iterator[Item]:
    yield f"{number:>3}. ", f"{finding['kind']}, {finding['status']}: {finding['proposition']}"
    yield "     sql       ", finding["sql"]
    refs = finding["evidence_refs"]
    if refs:
        more = f" and {len(refs) - _SHOWN_REFS} more" if len(refs) > _SHOWN_REFS else ""
        yield "     evidence  ", " ".join(refs[:_SHOWN_REFS]) + more
    for text in finding["against"]:
        yield "     against   ", text
