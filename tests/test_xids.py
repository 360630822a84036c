from __future__ import annotations

from lake.xids import CRITICAL_XIDS, XIDS


def test_the_table_is_whole() -> None:
    assert all(code == xid.code and xid.name and xid.kind.isalpha() for code, xid in XIDS.items())
    kinds = {"application", "driver", "device", "memory", "link", "bus", "power", "consequence", "informational"}
    assert {xid.kind for xid in XIDS.values()} == kinds
    assert XIDS[79] == (79, "GPU has fallen off the bus", "bus", "reboot_node", True)


def test_what_an_application_causes_or_another_explains_condemns_no_device() -> None:
    assert {48, 63, 64, 74, 79, 94, 95, 119} - CRITICAL_XIDS == {63}
    assert CRITICAL_XIDS.isdisjoint({13, 31, 43, 45, 106, 154})
    assert all(XIDS[code].kind not in ("application", "consequence", "informational") for code in CRITICAL_XIDS)
