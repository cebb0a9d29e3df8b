"""Joining a Ray cluster whose client server fails now and then, which a real one does about once in twenty times."""

from __future__ import annotations

import pytest

from benchctl.errors import UsageError
from benchctl.experiments.cluster.on_ray import ATTEMPTS, _join


class Ray:
    """Ray, whose first attempts to connect end with `error`."""

    def __init__(self, fails: int, error: Exception) -> None:
        self.fails, self.error, self.attempts = fails, error, 0

    def init(self, **_: object) -> None:
        self.attempts += 1
        if self.attempts <= self.fails:
            raise self.error


def test_a_client_server_that_dies_at_its_start_is_asked_again() -> None:
    ray = Ray(ATTEMPTS - 1, ConnectionAbortedError("Initialization failure from server"))
    _join(ray, "ray://127.0.0.1:10001")
    assert ray.attempts == ATTEMPTS


def test_not_for_ever() -> None:
    ray = Ray(ATTEMPTS, ConnectionAbortedError("Initialization failure from server"))
    with pytest.raises(UsageError, match="Initialization failure"):
        _join(ray, "ray://127.0.0.1:10001")
    assert ray.attempts == ATTEMPTS


def test_what_another_attempt_cannot_mend_is_reported_at_once() -> None:
    ray = Ray(1, RuntimeError("Version mismatch"))
    with pytest.raises(UsageError, match="Version mismatch"):
        _join(ray, "ray://127.0.0.1:10001")
    assert ray.attempts == 1
