"""Runs made by hand, and a folder to write a run into."""

from tests.analysis.conftest import make_manifest, make_record, make_run
from tests.measurement.conftest import cache, folder, manifest, prompts, recipe, writer

__all__ = ["cache", "folder", "make_manifest", "make_record", "make_run", "manifest", "prompts", "recipe", "writer"]
