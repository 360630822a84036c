"""Rows of the signal tables as a Perfetto trace that its UI and trace processor open."""

from lake.formats.perfetto_writer.trace import Content, Written, write_trace

__all__ = ["Content", "Written", "write_trace"]
