"""What the tests of experiments share with those of the trunk."""

from __future__ import annotations

from tests.analysis.conftest import make_manifest
from tests.cli.conftest import empty_folder
from tests.measurement.conftest import cache, folder, manifest, prompts, recipe

__all__ = ["cache", "empty_folder", "folder", "make_manifest", "manifest", "prompts", "recipe"]
