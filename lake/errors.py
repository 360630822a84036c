"""Errors of Lake: one root, and a subclass only where a caller would act differently."""

from __future__ import annotations


class LakeError(Exception):
    """Root of every error raised on purpose; `message` says what, where and what to do.

    `exit_code` is what the command line ends with; `retry` tells whether the same call may
    succeed later without any change.
    """

    exit_code = 1
    retry = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Invalid(LakeError):
    """The input or the request is wrong; the same call fails again."""

    exit_code = 2


class NotFound(LakeError):
    """The named thing does not exist in this lake."""

    exit_code = 1


class Conflict(LakeError):
    """Another writer got there first; re-read the state and decide again."""

    exit_code = 3
    retry = True


class Unavailable(LakeError):
    """A store, a catalog or a limited resource is not available now; retry later."""

    exit_code = 3
    retry = True


class LimitExceeded(LakeError):
    """A configured limit (time, memory, size, depth, count) stopped the work; the message names it."""

    exit_code = 1


class Cancelled(LakeError):
    """The caller cancelled the work."""

    exit_code = 1


class Corrupt(LakeError):
    """Stored bytes are not what was written (digest, footer or catalog disagree)."""

    exit_code = 4
