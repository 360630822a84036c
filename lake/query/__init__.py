"""SQL over a lake: `Engine.sql` gives a `Result`."""

from lake.query.engine import Engine
from lake.query.result import Result
from lake.query.scanned import Scanned, ScannedTable

__all__ = ["Engine", "Result", "Scanned", "ScannedTable"]
