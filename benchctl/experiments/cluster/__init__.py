"""Measuring on the machines of a Ray cluster: `benchctl run --on`."""

from __future__ import annotations

from benchctl.offers import Experiment

EXPERIMENT = Experiment(nodes="benchctl.experiments.cluster.on_ray:connected")
