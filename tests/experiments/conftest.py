"""What the tests of experiments share with those of the trunk."""

from __future__ import annotations

from tests.analysis.conftest import make_manifest
from tests.cli.conftest import empty_folder
from tests.measure.conftest import cache, recipe

__all__ = ["cache", "empty_folder", "make_manifest", "recipe"]
