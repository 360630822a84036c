from __future__ import annotations

import pyarrow as pa

from lake.udf.xid_catalogue import COLUMNS, xids
from lake.xids import CRITICAL_XIDS, XIDS


def ask(sql: str) -> pa.Table:
    raise AssertionError(f"nothing is asked: {sql}")


def test_the_catalogue_as_a_table() -> None:
    table = xids(ask)
    assert table.schema == pa.schema([(column.name, column.type) for column in COLUMNS])
    rows = {row["xid"]: row for row in table.to_pylist()}
    assert rows.keys() == XIDS.keys()
    assert rows[79] == {
        "xid": 79,
        "name": "GPU has fallen off the bus",
        "kind": "bus",
        "action": "reboot_node",
        "critical": True,
    }
    assert {code for code, row in rows.items() if row["critical"]} == CRITICAL_XIDS
