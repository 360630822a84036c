"""The message `perftools.profiles.Profile`: https://github.com/google/pprof/blob/main/proto/profile.proto."""

from __future__ import annotations

from typing import Final

from lake.formats.declared import declare

_MESSAGES: Final = {
    "Profile": (
        "*ValueType sample_type=1, *Sample sample=2, *Mapping mapping=3, *Location location=4, *Function function=5, "
        "*string string_table=6, int64 drop_frames=7, int64 keep_frames=8, int64 time_nanos=9, "
        "int64 duration_nanos=10, ValueType period_type=11, int64 period=12, *int64 comment=13, "
        "int64 default_sample_type=14, int64 doc_url=15"
    ),
    "ValueType": "int64 type=1, int64 unit=2",
    "Sample": "*uint64 location_id=1, *int64 value=2, *Label label=3",
    "Label": "int64 key=1, int64 str=2, int64 num=3, int64 num_unit=4",
    "Mapping": (
        "uint64 id=1, uint64 memory_start=2, uint64 memory_limit=3, uint64 file_offset=4, int64 filename=5, "
        "int64 build_id=6, bool has_functions=7, bool has_filenames=8, bool has_line_numbers=9, "
        "bool has_inline_frames=10"
    ),
    "Location": "uint64 id=1, uint64 mapping_id=2, uint64 address=3, *Line line=4, bool is_folded=5",
    "Line": "uint64 function_id=1, int64 line=2, int64 column=3",
    "Function": "uint64 id=1, int64 name=2, int64 system_name=3, int64 filename=4, int64 start_line=5",
}

Profile: Final = declare("perftools.profiles", _MESSAGES)["Profile"]
"""The class of the message."""
