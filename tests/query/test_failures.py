from __future__ import annotations

import pytest

from lake.errors import Corrupt
from lake.query.failures import Translated


def test_a_reader_that_panics_on_a_broken_footer_means_a_corrupt_file() -> None:
    """The text that the engine gives when an offset in the footer points outside of the file."""
    text = (
        'Join Error\ncaused by\nExternal error: task 12 panicked with message "range start must not be greater than '
        'end: 18446744073709312521 <= 90075"'
    )
    with pytest.raises(Corrupt, match="lake evidence verify"), Translated((), (), 1):
        raise RuntimeError(text)
