from __future__ import annotations

import pyarrow as pa

from lake.formats.torchelastic import failures, worker_events

REPORT = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-29_13:32:24
  host      : node-a
  rank      : 5 (local_rank: 1)
  exitcode  : 143 (pid: 7208)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_13:32:23
  host      : node-b
  rank      : 9 (local_rank: 1)
  exitcode  : -9 (pid: 7209)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 7209
============================================================
[7]:
  rank      : 1 (local_rank: 1)
"""


def test_the_report_tells_cause_from_victims() -> None:
    lines = REPORT.split("\n")
    found = failures(pa.array(lines))
    assert [lines[row] for row in found] == ["[1]:", "[0]:"]
    victim, cause = found.values()
    assert (victim.columns["event_name"], victim.columns["rank_id"]) == ("torchelastic.failure", 5)
    assert cause.columns["event_name"] == "torchelastic.root_cause"
    assert cause.columns["ts"] == 1795959143 * 1_000_000_000  # date -u -d '2026-11-29 13:32:23' +%s
    assert cause.columns["body"].count("\n") == 6
    assert {name: text for name, (_, text) in cause.attributes.items()} == {
        "host": "node-b",
        "error_file": "<N/A>",
        "traceback": "Signal 9 (SIGKILL) received by PID 7209",
        "rank": "9",
        "local_rank": "1",
        "exitcode": "-9",
        "pid": "7209",
        "signal": "SIGKILL",
        "time": "2026-11-29_13:32:23",
        "time.zone": "assumed_utc",
    }


def test_a_report_cut_or_out_of_place_gives_what_is_there() -> None:
    cut = failures(pa.array(["Root Cause (first observed failure):", "[0]:", "  rank      : 2 (local_rank: 2)"]))
    assert cut[1].columns["rank_id"] == 2
    assert "ts" not in cut[1].columns
    odd = failures(pa.array(["Failures:", "[0]:", "  time      : later", "  rank      : two", "[1]:", "x"]))
    assert list(odd) == [1]
    assert "rank_id" not in odd[1].columns
    assert failures(pa.array(["[0]:", "  rank      : 2 (local_rank: 2)"])) == {}
    assert failures(pa.array([], pa.string())) == {}


def test_agent_lines_become_events() -> None:
    event, attributes = worker_events(
        pa.array(
            [
                "api.py:1002] failed (exitcode: -6) local_rank: 1 (pid: 9) of binary: python",
                "api.py:1028] Sending process 7208 closing signal SIGTERM",
                "nothing",
            ]
        )
    )
    assert event.to_pylist() == ["torchelastic.worker_failed", "torchelastic.closing_signal", None]
    values = {name: column.to_pylist() for name, (_, column) in attributes.items()}
    assert values == {
        "exitcode": ["-6", None, None],
        "local_rank": ["1", None, None],
        "pid": ["9", "7208", None],
        "signal": [None, "SIGTERM", None],
    }
