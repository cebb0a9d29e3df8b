"""The run folder that the tests of measuring write into serves the tests of what lies in it."""

from tests.measurement.conftest import folder, manifest, recipe, writer

__all__ = ["folder", "manifest", "recipe", "writer"]
