"""Views over the signal tables, in the order in which they build on one another.

Every view lets filters on its key columns through to the scans below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from lake.schemas import TABLES


@dataclass(frozen=True, slots=True)
class View:
    """A named query; `reads` are the tables and views it mentions."""

    name: str
    sql: str
    reads: tuple[str, ...]
    doc: str


STACK_ROWS: Final = "stack_rows"
"""The physical `stacks` table, in which several ingests may have written the same stack"""

_OTHER_COLUMNS: Final = [name for name in TABLES["stacks"].schema.names if name != "stack_id"]
_STACKS: Final = (
    f"SELECT stack_id, {', '.join(f'first_value({name}) AS {name}' for name in _OTHER_COLUMNS)} "
    f"FROM {STACK_ROWS} GROUP BY stack_id"
)

# Communication and garbage collection nested in a phase are found by time, not by parent, because other spans may
# lie between. `inside` holds, at every begin and end of a phase, the nested time that has begun before; the
# difference of the two is what the phase contains. At equal times a phase begins before what it contains and
# ends before what follows. A span inside another of its own phase (the library's call in the framework's) tells the
# same time again and is left out.
_PHASES: Final = """
WITH named AS (
    SELECT run_id, attempt_id, step_id, rank_id, source, coalesce(track, '') AS lane, phase, category, ts, dur,
           CAST(ts AS BIGINT) AS begin_ns
    FROM spans
    WHERE phase IS NOT NULL AND dur IS NOT NULL AND category IN ('phase', 'io', 'collective', 'p2p', 'gc')
), told AS (
    SELECT *, max(begin_ns + dur) OVER (PARTITION BY run_id, attempt_id, step_id, rank_id, source, lane, phase
                                        ORDER BY begin_ns, dur DESC
                                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS told_until_ns
    FROM named
), marked AS (
    SELECT * FROM told WHERE told_until_ns IS NULL OR begin_ns + dur > told_until_ns
), events AS (
    SELECT run_id, attempt_id, step_id, rank_id, source, lane, phase, category, ts,
           CASE WHEN event = 'begin' THEN 1 ELSE 0 END AS spans, CASE WHEN event = 'begin' THEN dur ELSE 0 END AS dur,
           CASE WHEN event = 'end' THEN begin_ns + dur ELSE begin_ns END AS at_ns,
           CASE WHEN event = 'inner' THEN 1 ELSE 0 END AS turn,
           CASE WHEN event = 'begin' THEN -1 WHEN event = 'end' THEN 1 ELSE 0 END AS side,
           CASE WHEN event = 'inner' AND category IN ('collective', 'p2p') THEN dur ELSE 0 END AS wait_ns,
           CASE WHEN event = 'inner' AND category = 'gc' THEN dur ELSE 0 END AS gc_ns
    FROM marked CROSS JOIN (VALUES ('begin'), ('end'), ('inner')) AS events (event)
), inside AS (
    SELECT run_id, attempt_id, step_id, rank_id, source, phase, category, ts, spans, dur,
           side * sum(wait_ns) OVER lane_so_far AS wait_ns, side * sum(gc_ns) OVER lane_so_far AS gc_ns
    FROM events
    WINDOW lane_so_far AS (PARTITION BY run_id, attempt_id, step_id, rank_id, source, lane ORDER BY at_ns, turn
                           ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
), summed AS (
    SELECT run_id, attempt_id, step_id, rank_id, phase, source, min(category) AS category, min(ts) AS ts,
           sum(spans) AS spans, sum(dur) AS dur, sum(wait_ns) AS wait_ns, sum(gc_ns) AS gc_ns
    FROM inside GROUP BY run_id, attempt_id, step_id, rank_id, phase, source
)
SELECT run_id, attempt_id, step_id, rank_id, phase, source, category, ts, spans, dur,
       CASE WHEN category = 'gc' THEN dur
            WHEN category IN ('collective', 'p2p') THEN greatest(dur - gc_ns, 0)
            ELSE greatest(dur - wait_ns - gc_ns, 0) END AS self_ns,
       CASE WHEN category = 'gc' THEN 0
            WHEN category IN ('collective', 'p2p') THEN greatest(dur - gc_ns, 0)
            ELSE wait_ns END AS waiting_ns
FROM summed
"""

_STEPS: Final = """
WITH told AS (
    SELECT run_id, attempt_id, step_id, rank_id, source, ts, dur, CAST(NULL AS BIGINT) AS busy_ns,
           CAST(NULL AS BIGINT) AS io_ns, CAST(NULL AS BIGINT) AS waiting_ns, CAST(NULL AS BIGINT) AS inner_ns,
           CAST(NULL AS BIGINT) AS gc_ns
    FROM spans WHERE category = 'step' AND step_id IS NOT NULL AND dur IS NOT NULL
    UNION ALL
    SELECT run_id, attempt_id, step_id, rank_id, source, NULL, NULL,
           CASE WHEN category = 'phase' THEN self_ns ELSE 0 END, CASE WHEN category = 'io' THEN self_ns ELSE 0 END,
           CASE WHEN category IN ('collective', 'p2p') THEN self_ns ELSE 0 END,
           CASE WHEN category IN ('phase', 'io') THEN waiting_ns ELSE 0 END,
           CASE WHEN category = 'gc' THEN self_ns ELSE 0 END
    FROM phases WHERE step_id IS NOT NULL
), summed AS (
    SELECT run_id, attempt_id, step_id, rank_id, source, min(ts) AS ts, sum(dur) AS dur, sum(busy_ns) AS busy_ns,
           sum(io_ns) AS io_ns, sum(waiting_ns) AS waiting_ns, sum(inner_ns) AS inner_ns, sum(gc_ns) AS gc_ns
    FROM told GROUP BY run_id, attempt_id, step_id, rank_id, source
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY run_id, attempt_id, step_id, rank_id
                                 ORDER BY CASE WHEN source = 'otlp' THEN 0 ELSE 1 END, source) AS choice
    FROM summed WHERE dur IS NOT NULL
)
SELECT run_id, attempt_id, step_id, rank_id, source, ts, dur, busy_ns, io_ns, waiting_ns,
       CASE WHEN waiting_ns IS NOT NULL THEN greatest(waiting_ns - inner_ns, 0) END AS exposed_ns, gc_ns,
       CASE WHEN busy_ns IS NOT NULL THEN greatest(dur - busy_ns - io_ns - waiting_ns - gc_ns, 0) END AS other_ns
FROM ranked WHERE choice = 1
"""

_KERNELS: Final = """
SELECT run_id, attempt_id, step_id, rank_id, host_id, gpu_uuid, source, evidence_ref, ts, dur, name, category, phase,
       track, correlation_id, communicator_id, seq, bytes, span_id, parent_id, attributes
FROM spans
WHERE category IN ('kernel', 'collective', 'p2p') AND (category = 'kernel' OR attributes['cat'] = 'kernel')
"""

# One rank may have been dumped several times (at a failure and again at the end): its dumps are one row here.
_COLLECTIVE_WAITS: Final = """
WITH parts AS (
    SELECT run_id, attempt_id, source, communicator_id, seq, rank_id, min(step_id) AS step_id, min(op) AS op,
           max(bytes) AS bytes, min(CAST(scheduled_at AS BIGINT)) AS scheduled_ns,
           min(CAST(started_at AS BIGINT)) AS started_ns, max(CAST(completed_at AS BIGINT)) AS completed_ns
    FROM collectives
    WHERE NOT coalesce(p2p, false) AND seq IS NOT NULL AND rank_id IS NOT NULL
    GROUP BY run_id, attempt_id, source, communicator_id, seq, rank_id
), begun AS (
    SELECT *, count(started_ns) OVER operation = count(*) OVER operation AS all_started
    FROM parts WINDOW operation AS (PARTITION BY run_id, attempt_id, source, communicator_id, seq)
), timed AS (
    SELECT *, CASE WHEN all_started THEN started_ns ELSE scheduled_ns END AS start_ns FROM begun
), compared AS (
    SELECT *, min(start_ns) OVER operation AS first_ns, max(start_ns) OVER operation AS last_ns,
           count(*) OVER operation AS ranks_seen
    FROM timed WINDOW operation AS (PARTITION BY run_id, attempt_id, source, communicator_id, seq)
)
SELECT run_id, attempt_id, step_id, communicator_id, seq, rank_id, op, source, bytes,
       to_timestamp_nanos(start_ns) AS ts, CASE WHEN all_started THEN 'started' ELSE 'scheduled' END AS basis,
       ranks_seen,
       start_ns - first_ns AS lateness_ns, last_ns - start_ns AS wait_ns, completed_ns - last_ns AS transfer_ns
FROM compared
"""

_VIEWS: Final = (
    View("stacks", _STACKS, (STACK_ROWS,), "every distinct stack once"),
    View(
        "phases",
        _PHASES,
        ("spans",),
        "time of a rank in one phase of a step, as one source tells it: dur of all its spans, self_ns without nested "
        "communication and garbage collection, waiting_ns in communication; sources describe the same time, never "
        "sum over them",
    ),
    View(
        "steps",
        _STEPS,
        ("spans", "phases"),
        "one row per run, attempt, step and rank, from OTLP where it tells of the step, else from the first source by "
        "name: busy_ns computing, io_ns, waiting_ns in communication and exposed_ns of it outside computing, gc_ns, "
        "other_ns that no phase explains; null where the source tells no phases",
    ),
    View("kernels", _KERNELS, ("spans",), "device kernels, those of collectives too"),
    View(
        "collective_waits",
        _COLLECTIVE_WAITS,
        ("collectives",),
        "one rank's part in one collective: lateness_ns behind the first to start, wait_ns for the last, transfer_ns "
        "from the last start to its own end; times of ranks are compared as their clocks told them, by scheduling "
        "where the start of one is not known (basis)",
    ),
)
VIEWS: Final = MappingProxyType({view.name: view for view in _VIEWS})


def needed(words: frozenset[str]) -> list[View]:
    """The views among some names and those that they build on, bases first."""
    wanted = set(words)
    for view in reversed(_VIEWS):
        if view.name in wanted:
            wanted.update(view.reads)
    return [view for view in _VIEWS if view.name in wanted]
