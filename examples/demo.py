"""The demo: a lake in ./.lake, the recorded runs ingested, each incident resolved and printed."""

from __future__ import annotations

from pathlib import Path

import lake
from lake.cli.incident_text import incident_text

RECORDINGS = Path(__file__).parent / "recordings"


def main() -> None:
    """Ingest every recording and print the answer to each run."""
    with lake.open("./.lake") as here:
        for folder in sorted(path for path in RECORDINGS.iterdir() if path.is_dir()):
            report = here.ingest(folder)
            taken = sum(1 for file in report.files if file.status in ("taken", "salvaged"))
            known = sum(1 for file in report.files if file.status == "duplicate")
            rows = ", ".join(f"{count} {table}" for table, count in sorted(report.rows.items()))
            print(f"ingested {folder.name}: {taken} files taken, {known} known already; {rows or 'no new rows'}")
        print()
        for run in here.sql("SELECT run_id FROM runs ORDER BY run_id").rows():
            print(incident_text(here.resolve(run=run["run_id"])))
    print("the lake is in ./.lake; go on with: .venv/bin/lake sql   or   .venv/bin/lake resolve --run run-slow-01")


if __name__ == "__main__":
    main()
