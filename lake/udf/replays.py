"""Which of two attempts that computed the same steps differently is wrong, and how that is known.

Two attempts can only accuse one another once they have proven to be deterministic, by fingerprints that agree
before, or beside, the first that differs (SDCHunter, AEGIS-SDC). Then an attempt that a third one confirms is
right; else a norm far from its usual size tells; else the later attempt, a replay, is the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from lake.udf.first_divergence import agreed_until
from lake.udf.registry import Ask
from lake.udf.relations import fetch, literal, of_attempt

NORM_RATIO: Final = 4.0
"""A norm this many times its usual size (or its inverse) tells by itself which side is wrong."""
BY_ORDER: Final = "order"
BY_NORM: Final = "norm"
BY_THIRD: Final = "third"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Steps, both ends included, in which two attempts computed the same."""

    attempt_a: int
    attempt_b: int
    step_from: int
    step_to: int


@dataclass(frozen=True, slots=True)
class Disagreement:
    """The first divergence of two attempts: which is accused, and by what."""

    accused: int
    reference: int
    rows: tuple[dict[str, Any], ...]
    """rows of `first_divergence` (lower attempt as a) at the first place that differs, one per rank and tensor"""
    by: str = BY_ORDER

    @property
    def first(self) -> dict[str, Any]:
        """The first row."""
        return self.rows[0]

    @property
    def step_id(self) -> int:
        """The first step that differs."""
        return int(self.first["step_id"])

    @property
    def pair(self) -> tuple[int, int]:
        """The two attempts in order."""
        return min(self.accused, self.reference), max(self.accused, self.reference)

    @property
    def equal(self) -> int:
        """Fingerprints that agree before or beside the first that differs."""
        return int(self.first["equal_before"]) + int(self.first["equal_beside"])

    @property
    def proven(self) -> bool:
        """Whether the attempts have shown to be deterministic, so that a difference is an error of one of them."""
        return self.equal > 0

    def rank_of(self, attempt_id: int, row: dict[str, Any] | None = None) -> int:
        """The rank that computed a differing tensor (the first when no row is given) in one of the two attempts."""
        chosen = self.first if row is None else row
        return int(chosen["rank_id" if attempt_id == self.pair[0] else "rank_id_b"])

    def norm_of(self, attempt_id: int) -> float | None:
        """The norm of the first differing tensor in one of the two attempts."""
        norm: float | None = self.first["norm_a" if attempt_id == self.pair[0] else "norm_b"]
        return norm


def usual_norm_sql(run_id: str, attempt_id: int, rank_id: int, row: dict[str, Any]) -> str:
    """Query for the usual norm of a tensor on a rank, in the other steps of the attempt."""
    return (
        "SELECT attempt_id, rank_id, tensor, median(norm) AS usual_norm, count(*) AS steps FROM signatures "
        f"WHERE {of_attempt(run_id, attempt_id)} AND tensor = {literal(row['tensor'])} "
        f"AND step_id <> {row['step_id']} AND norm IS NOT NULL AND rank_id = {rank_id} "
        "GROUP BY attempt_id, rank_id, tensor"
    )


def compare_attempts(ask: Ask, run_id: str) -> tuple[list[Disagreement], list[Agreement]]:
    """What the fingerprints of every two attempts with common steps say."""
    known = fetch(
        ask,
        "SELECT attempt_id, min(step_id) AS low, max(step_id) AS high FROM signatures "
        f"WHERE run_id = {literal(run_id)} AND attempt_id IS NOT NULL GROUP BY attempt_id ORDER BY attempt_id",
    ).to_pylist()
    different: list[Disagreement] = []
    agreements: list[Agreement] = []
    for index, later in enumerate(known):
        for earlier in known[:index]:
            if earlier["low"] is None or later["low"] is None or earlier["high"] < later["low"]:
                continue
            pair = earlier["attempt_id"], later["attempt_id"]
            table, _, steps = agreed_until(ask, run_id, *pair)
            rows = table.to_pylist()
            if rows:
                first = rows[0]["microbatch"], rows[0]["seq"]
                together = tuple(row for row in rows if (row["microbatch"], row["seq"]) == first)
                different.append(Disagreement(*pair, together))
            if steps and steps[0] <= steps[1] - bool(rows):
                agreements.append(Agreement(*pair, steps[0], steps[1] - bool(rows)))
    return [_judged(ask, run_id, found, agreements) for found in different], agreements


def _judged(ask: Ask, run_id: str, found: Disagreement, agreements: list[Agreement]) -> Disagreement:
    a, b = found.pair
    confirmed = {attempt: _confirmed(attempt, found, agreements) for attempt in (a, b)}
    if confirmed[a] != confirmed[b]:
        wrong, right = (b, a) if confirmed[a] else (a, b)
        return replace(found, accused=wrong, reference=right, by=BY_THIRD)
    ratios = {attempt: _norm_ratio(ask, run_id, attempt, found) for attempt in (a, b)}
    if None in ratios.values() or max(ratios[a] or 0.0, ratios[b] or 0.0) < NORM_RATIO or ratios[a] == ratios[b]:
        return found
    wrong, right = (a, b) if (ratios[a] or 0.0) > (ratios[b] or 0.0) else (b, a)
    return replace(found, accused=wrong, reference=right, by=BY_NORM)


def _confirmed(attempt_id: int, found: Disagreement, agreements: list[Agreement]) -> bool:
    """Whether a third attempt computed the differing step as this one did."""
    return any(
        attempt_id in (agreed.attempt_a, agreed.attempt_b) and agreed.step_from <= found.step_id <= agreed.step_to
        for agreed in agreements
        if {agreed.attempt_a, agreed.attempt_b} != {found.accused, found.reference}
    )


def _norm_ratio(ask: Ask, run_id: str, attempt_id: int, found: Disagreement) -> float | None:
    """How far the norm is from the usual one of this tensor on this rank, as a ratio ≥ 1; infinite for NaN."""
    norm = found.norm_of(attempt_id)
    query = usual_norm_sql(run_id, attempt_id, found.rank_of(attempt_id), found.first)
    usual = fetch(ask, query).to_pylist()
    if norm is None or not usual or not usual[0]["usual_norm"]:
        return None
    ratio = abs(norm) / usual[0]["usual_norm"]
    if ratio != ratio or ratio == 0:
        return float("inf")
    return float(max(ratio, 1 / ratio))
