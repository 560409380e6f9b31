"""What a save must keep to: each limit has a name, and an error that says what was found and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from magnitude_service.errors import ExhaustedError, InvalidRequestError, PreconditionError
from magnitude_service.snapshot.record import BLOBS_MAX, SESSION_ID_BYTES_MAX, Content
from magnitude_service.snapshot.retention import prefix_bytes, prefix_of
from magnitude_service.snapshot.table import Table

AGENT_STATE_BYTES_MAX: Final = 256 << 20
LABELS_MAX: Final = 16
LABEL_KEY_BYTES_MAX: Final = 64
LABEL_VALUE_BYTES_MAX: Final = 256
PART_NAME_BYTES_MAX: Final = 64
SESSION_ID: Final = re.compile(rf"[A-Za-z0-9\-_.:/]{{1,{SESSION_ID_BYTES_MAX}}}", re.ASCII)


def check_session_id(session_id: str) -> None:
    """Raises InvalidRequestError for an id that is none."""
    if not SESSION_ID.fullmatch(session_id):
        raise InvalidRequestError(
            f"session_id is {session_id[:SESSION_ID_BYTES_MAX]!r} ({len(session_id)} characters); it must be "
            f"1…{SESSION_ID_BYTES_MAX} letters, digits and -_.:/ .",
            remedy="Choose such a name.",
            field="session_id",
        )


def check_labels(labels: Mapping[str, str]) -> None:
    """Raises InvalidRequestError for too many labels, or one that is too long."""
    if len(labels) > LABELS_MAX:
        raise InvalidRequestError(
            f"There are {len(labels)} labels; at most {LABELS_MAX} are kept.",
            remedy="Leave some out, or keep them in the agent's state.",
            field="labels",
        )
    for key, value in labels.items():
        key_bytes, value_bytes = len(key.encode()), len(value.encode())
        if not 1 <= key_bytes <= LABEL_KEY_BYTES_MAX or value_bytes > LABEL_VALUE_BYTES_MAX:
            raise InvalidRequestError(
                f"The label {key[:LABEL_KEY_BYTES_MAX]!r} has a key of {key_bytes} bytes and a value of {value_bytes}; "
                f"1…{LABEL_KEY_BYTES_MAX} and at most {LABEL_VALUE_BYTES_MAX} are allowed.",
                remedy="Shorten it, or keep it in the agent's state.",
                field=f"labels[{key[:LABEL_KEY_BYTES_MAX]}]",
            )


def check_part_names(names: Iterable[str]) -> None:
    """Raises InvalidRequestError for a part without a name, or with a long one, or for too many."""
    names = list(names)
    for name in names:
        if not 1 <= len(name.encode()) <= PART_NAME_BYTES_MAX:
            raise InvalidRequestError(
                f"A part of the agent's state is named {name[:PART_NAME_BYTES_MAX]!r}; a name has "
                f"1…{PART_NAME_BYTES_MAX} bytes.",
                remedy="Rename it.",
                field="parts",
            )
    if len(names) > BLOBS_MAX - 2:  # beside agent_state and key_value
        raise InvalidRequestError(
            f"There are {len(names)} parts; at most {BLOBS_MAX - 2} are kept.",
            remedy="Put some of them together.",
            field="parts",
        )


def agent_bytes(contents: Iterable[Content]) -> int:
    """How many the application's bytes are. Raises InvalidRequestError where they are too many."""
    agent_bytes = sum([content.nbytes for content in contents])
    if agent_bytes > AGENT_STATE_BYTES_MAX:
        raise InvalidRequestError(
            f"The agent's state has {agent_bytes:,} bytes; at most {AGENT_STATE_BYTES_MAX:,} are kept.",
            remedy="Keep large results in files of your own, and their names in the state.",
            field="agent_state",
        )
    return agent_bytes


def check_expected(session_id: str, latest: int, expected: int | None) -> None:
    """Raises PreconditionError unless the latest version (0: none) is the expected one."""
    if expected is not None and latest != expected:
        raise PreconditionError(
            f"Session {session_id} is at version {latest}, not {expected}: somebody else has saved or deleted it.",
            remedy="Get the latest version, merge, and save again.",
            reason="VERSION_MISMATCH",
            session_id=session_id,
            version=latest,
        )


def check_quota(table: Table, session_id: str, more_bytes: int, quota_bytes: int) -> None:
    """Raises ExhaustedError where a prefix would hold more than its quota."""
    if quota_bytes == 0:
        return
    prefix = prefix_of(session_id)
    used = prefix_bytes(table, prefix)
    if more_bytes > 0 and used + more_bytes > quota_bytes:
        raise ExhaustedError(
            f"Sessions of {prefix} take {used:,} bytes; {more_bytes:,} more exceed their quota of {quota_bytes:,}.",
            remedy="Delete versions of them, or raise --state-quota-bytes.",
            reason="QUOTA_EXCEEDED",
            prefix=prefix,
        )
