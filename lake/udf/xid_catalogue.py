"""`xids`: what the XID messages of NVIDIA's driver say, and what to do about each."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from lake.udf.registry import Ask, Column, TableFunction, register
from lake.xids import XIDS

COLUMNS: Final = (
    Column("xid", pa.int64(), "the number in the message"),
    Column("name", pa.string(), "what it says"),
    Column(
        "kind",
        pa.string(),
        "what it speaks of: application, driver, device, memory, link, bus, power, informational, or a consequence of "
        "another",
    ),
    Column("action", pa.string(), "NVIDIA's immediate resolution, such as restart_app, reset_gpu, reboot_node, ignore"),
    Column("critical", pa.bool_(), "the device is not to be used before the action"),
)


def xids(ask: Ask) -> pa.Table:
    """One row a known XID."""
    columns = zip(*((xid.code, xid.name, xid.kind, xid.action, xid.critical) for xid in XIDS.values()), strict=True)
    arrays = [pa.array(values, column.type) for values, column in zip(columns, COLUMNS, strict=True)]
    return pa.table(arrays, names=[column.name for column in COLUMNS])


register(
    TableFunction(
        name="xids",
        family="health",
        purpose="the catalogue of XID messages: what each says, what to do, whether it condemns the device",
        source="NVIDIA, Analyzing Xid Errors with the Xid Catalog",
        reads=("nothing",),
        arguments=(),
        columns=COLUMNS,
        example="SELECT name, kind, action FROM xids() WHERE xid = 79",
        run=xids,
    )
)
