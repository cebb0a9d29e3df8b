"""What tests of many runs leave behind is ended with them."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import resource_tracker

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """End the helper process of a process pool, which Python keeps: others count the processes of this one."""
    yield
    resource_tracker._resource_tracker._stop()  # type: ignore[attr-defined]
