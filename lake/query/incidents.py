"""An answer to an incident, worked out at one snapshot and ready to be stored."""

from __future__ import annotations

import hashlib
import json
import time

from lake.query.engine import Engine
from lake.records import Incident
from lake.udf import incident


def resolve(engine: Engine, run_id: str, attempt_id: int | None = None) -> Incident:
    """The incident of a run (or of one attempt): its document, its findings and the snapshot they were read at.

    The id follows from run and attempt, so that resolving again replaces the earlier answer.

    Raises:
        NotFound: there is no such run or attempt.
    """
    snapshot = engine.snapshot()
    answer = incident.resolve(lambda text: engine.sql(text, snapshot=snapshot).arrow(), run_id, attempt_id)
    incident_id = "inc-" + hashlib.blake2b(f"{run_id}\0{attempt_id}".encode(), digest_size=6).hexdigest()
    document = {**answer.document(incident_id), "snapshot": snapshot.token()}
    return Incident(
        incident_id=incident_id,
        run_id=run_id,
        kind=answer.kind,
        opened_at=answer.window.ts_from or time.time_ns(),
        document=json.dumps(document, ensure_ascii=False),
        snapshot=snapshot.token(),
        findings=answer.findings,
    )
