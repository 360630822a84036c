"""NVIDIA's XID messages as data: what each says, what it speaks of, what to do, and whether it condemns the device.

Codes, names and immediate resolutions: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (October
2025); codes that it calls unused by today's drivers are named as the list of error causes has them (r555,
https://docs.nvidia.com/deploy/xid-errors/index.html).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Final, NamedTuple

_TABLE: Final = """
1 application restart_app invalid or corrupted push buffer stream
2 application restart_app invalid or corrupted push buffer stream
3 application restart_app invalid or corrupted push buffer stream
4 application restart_app invalid or corrupted push buffer stream
6 application restart_app invalid or corrupted push buffer stream
7 application restart_app invalid or corrupted push buffer address
8 application restart_app GPU stopped processing
9 driver contact_support driver error programming GPU
11 application restart_app invalid or corrupted push buffer stream
12 driver contact_support driver error handling GPU exception
13 application restart_app graphics engine exception
16 driver contact_support display engine hung
18 driver contact_support bus mastering disabled in PCI config space
19 driver contact_support display engine error
24 driver contact_support GPU semaphore timeout
25 application restart_app invalid or illegal push buffer stream
26 driver contact_support framebuffer timeout
27 driver contact_support video processor exception
28 driver contact_support video processor exception
29 driver contact_support video processor exception
30 driver contact_support GPU semaphore access error
31 application restart_app GPU memory page fault
32 application restart_app invalid or corrupted push buffer stream
33 driver contact_support internal micro-controller error
37 driver ignore driver firmware error
38 driver ignore driver firmware error
39 device restart_app copy engine 0 exception
40 device restart_app copy engine 1 exception
41 device restart_app copy engine 2 exception
43 application ignore GPU stopped processing
44 driver ignore graphics engine fault during context switch
45 consequence ignore preemptive cleanup after an earlier error
46 driver! reset_gpu GPU stopped processing
48 memory! reset_gpu double bit ECC error
54 power! check_hardware auxiliary power is not connected to the GPU board
56 driver contact_support display engine error
57 memory contact_support error programming video memory interface
58 memory contact_support unstable video memory interface detected
59 driver contact_support internal micro-controller error
60 application restart_app video processor exception
61 device! contact_support internal micro-controller breakpoint
62 device! reset_gpu internal micro-controller halt
63 memory ignore GPU memory remapping event
64 memory! reset_gpu GPU memory remapping failure
66 driver ignore illegal access by driver
67 driver ignore illegal access by driver
68 device restart_app NVDEC0 exception
69 device! restart_app graphics engine class error
70 device restart_app copy engine 3 unknown error
71 device restart_app copy engine 4 unknown error
72 device restart_app copy engine 5 unknown error
74 link! check_nvlink NVLink error
75 device restart_app copy engine 6 unknown error
76 device restart_app copy engine 7 unknown error
77 device restart_app copy engine 8 unknown error
78 driver update_software vGPU start error
79 bus! reboot_node GPU has fallen off the bus
80 bus restart_app corrupted data sent to GPU
81 device! contact_support VGA subsystem error
82 device restart_app NVJPG0 error
83 device restart_app NVDEC1 error
84 device restart_app NVDEC2 error
85 device restart_app copy engine 9 unknown error
86 device restart_app OFA exception
88 device restart_app NVDEC3 error
89 device restart_app NVDEC4 error
92 memory! ignore high single-bit ECC error rate
93 informational ignore non-fatal violation of provisioned InfoROM wear limit
94 memory! restart_app contained memory error
95 memory! reset_gpu uncontained memory error
96 device restart_app NVDEC5 error
97 device restart_app NVDEC6 error
98 device restart_app NVDEC7 error
99 device restart_app NVJPG1 error
100 device restart_app NVJPG2 error
101 device restart_app NVJPG3 error
102 device restart_app NVJPG4 error
103 device restart_app NVJPG5 error
104 device restart_app NVJPG6 error
105 device restart_app NVJPG7 error
106 informational ignore SMBPBI test message
107 informational ignore SMBPBI test message, silent
108 link ignore NVLink remote translation error
109 driver! reset_gpu context switch timeout error
110 device! reset_gpu security fault error
119 driver! reset_gpu GSP RPC timeout
120 driver! reset_gpu GSP error
121 link! ignore C2C error
125 device contact_support InfoROM file system error
126 device restart_app copy engine 10 unknown error
127 device restart_app copy engine 11 unknown error
128 device restart_app copy engine 12 unknown error
129 device restart_app copy engine 13 unknown error
130 device restart_app copy engine 14 unknown error
131 device restart_app copy engine 15 unknown error
132 device restart_app copy engine 16 unknown error
133 device restart_app copy engine 17 unknown error
134 device restart_app copy engine 18 unknown error
135 device restart_app copy engine 19 unknown error
136 link! reset_gpu link training failed
137 application ignore NVLink privilege error
139 device restart_app OFA1 error
140 memory! reset_gpu unrecovered ECC error
141 application ignore CUDA fast path error
142 device contact_support NVENC3 error
143 device! reset_gpu GPU initialization error
144 link! check_nvlink NVLink SAW error
145 link! check_nvlink NVLink RLW error
146 link! check_nvlink NVLink TLW error
147 link! check_nvlink NVLink TREX error
148 link! check_nvlink NVLink NVLPW_CTRL error
149 link! check_nvlink NVLink NETIR error
150 link! check_nvlink NVLink MSE error
151 driver restart_vm key rotation error
152 device ignore DLA SMMU error
153 device ignore DLA timeout error
154 informational follow_report GPU recovery action changed
155 link! reset_gpu NVLink software defined error
156 memory! reset_gpu resource retirement event
157 memory! contact_support resource retirement failure
158 device! reset_gpu GPU fatal timeout
159 memory check_software CHI non-data error
160 memory ignore channel retirement event
161 memory! contact_support channel retirement failure
162 informational ignore power smoothing circuitry reengaged
163 informational ignore power smoothing circuitry disengaged
164 informational ignore power smoothing circuitry: low lifetime reached
165 informational ignore power smoothing circuitry: lifetime exhausted
166 link contact_support traffic seen before the link was configured for encryption
167 bus! contact_support PCIe fatal timeout
168 memory! contact_support errors in the write protected region, memory capacity reduced
169 device! contact_support internal micro-controller halt
170 link contact_support interrupt seen in confidential computing mode
171 memory! reset_gpu uncorrectable DRAM error, more on XID 48
172 memory! reset_gpu uncorrectable SRAM error, more on XID 48
"""


class Xid(NamedTuple):
    """One kind of message."""

    code: int
    name: str
    kind: str
    """what it speaks of: application, driver, device, memory, link, bus, power, informational, or a consequence of
    another"""
    action: str
    """immediate resolution: restart_app, reset_gpu, reboot_node, restart_vm, check_nvlink, check_hardware,
    check_software, update_software, contact_support, follow_report, ignore"""
    critical: bool
    """the device, its driver, bus or link failed rather than the application: not to be used before the action"""


def _read(line: str) -> Xid:
    code, kind, action, name = line.split(" ", 3)
    return Xid(int(code), name, kind.rstrip("!"), action, kind.endswith("!"))


XIDS: Final = MappingProxyType({xid.code: xid for xid in map(_read, _TABLE.strip().splitlines())})
"""All known messages by code."""
CRITICAL_XIDS: Final = frozenset(code for code, xid in XIDS.items() if xid.critical)
"""Codes that condemn the device."""
