"""The run folder, recipe and prompts of the tests of measuring, for what watches a run."""

from tests.measurement.conftest import folder, manifest, prompts, recipe, writer

__all__ = ["folder", "manifest", "prompts", "recipe", "writer"]
