"""What a call of a table function is about: a name that fits nothing is an error, not an empty answer."""

from __future__ import annotations

import difflib
from typing import Any, Final

from lake.catalog.contract import Catalog
from lake.errors import NotFound

_SHOWN: Final = 20


def expanded(catalog: Catalog, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with a unique prefix of an evidence_ref written out.

    Raises:
        Invalid: it is no reference, or the prefix fits several objects.
        NotFound: nothing has that reference.
    """
    ref = arguments.get("evidence_ref")
    return arguments if ref is None else {**arguments, "evidence_ref": catalog.evidence(ref)[0].evidence_ref}


def check_known(catalog: Catalog, arguments: dict[str, Any]) -> None:
    """Look whether the run and the attempts that a call names exist.

    Raises:
        NotFound: the catalog knows no such run, or the run has no such attempt.
    """
    run_id = arguments.get("run_id")
    if run_id is None:
        return
    runs = sorted(name for name in catalog.relation("runs")["run_id"].to_pylist() if name is not None)
    if run_id not in runs:
        near = difflib.get_close_matches(run_id, runs, n=_SHOWN) or runs[:_SHOWN]
        raise NotFound(f"no run {run_id!r} in this lake; known runs: {', '.join(near) or 'none'}")
    attempts = catalog.relation("attempts").select(["run_id", "attempt_id"]).to_pylist()
    known = sorted(row["attempt_id"] for row in attempts if row["run_id"] == run_id)
    for name in ("attempt_id", "attempt_a", "attempt_b"):
        attempt = arguments.get(name)
        if attempt is not None and attempt not in known:
            raise NotFound(f"run {run_id!r} has no attempt {attempt}; it has: {', '.join(map(str, known)) or 'none'}")
