"""What an arm is compared with: a single type for planning, analysis and pages, so that nothing derives it twice.

It is made of a recipe (`Recipe.compared`), of a run's manifest (`Manifest.compared`), and of bare labels (`by_label`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class GroupKey:
    """What a baseline and the arms that are compared with it have in common: how the target computes, and how it is
    asked."""

    setups: str | None = None
    """The group of setups that compute the target alike; `None` where the recipe has no axes."""
    context_length: int | None = None
    """Tokens that prompts are padded or cut to."""
    concurrency: int = 1
    rate: float | None = None
    """Requests a second of open-loop arrival; `None`: a request is sent when another ends."""
    temperature: float = 0.0
    max_tokens: int | None = None
    """Tokens of the longest answer, where that is varied."""

    @property
    def part(self) -> str | None:
        """The part of a run that a target scores, by the name of its files: setups, length of prompts and answers."""
        prompts = None if self.context_length is None else f"ctx{self.context_length}"
        answers = None if self.max_tokens is None else f"n{self.max_tokens}"
        return "-".join(filter(None, (self.setups, prompts, answers))) or None

    @property
    def one_at_a_time(self) -> bool:
        """Whether a request is sent when the request before it has been answered, so that it waits for none."""
        return self.concurrency == 1 and self.rate is None


@dataclass(frozen=True)
class ModelName:
    """A model, as a recipe or a manifest identifies it."""

    source: str
    identity: tuple[str, ...] = ()
    """What distinguishes it from models of that source: its quantization in a recipe, its files' SHA-256 in a run."""


@dataclass(frozen=True)
class ComparedArm:
    """An arm, what it ran on, and what it is compared with."""

    name: str
    of: str
    """The name of the recipe's arm, without setup and condition; its own name where nothing varies."""
    group: GroupKey = GroupKey()
    setup: str | None = None
    """`None` where the recipe has no axes."""
    engine: str | None = None
    """Its kind; `None` for a study's bare files, as are the models."""
    url: str | None = None
    """The address of an endpoint."""
    target: ModelName | None = None
    draft: ModelName | None = None
    """`None` also for an arm that takes no draft model."""
    target_cache: str | None = None
    draft_cache: str | None = None
    """Types of the KV caches, where the recipe names them."""
    baseline: str = ""
    """The arm that it is compared with; its own name for a baseline."""
    again: str | None = None
    """The second cell of that baseline, whose times count as the baseline's."""

    @property
    def is_baseline(self) -> bool:
        """Whether the arms of its group are compared with it."""
        return self.name == self.baseline

    @property
    def is_again(self) -> bool:
        """Whether it is the second cell of its baseline: compared with the first, it measures noise."""
        return self.name == self.again


def with_baselines(
    arms: Sequence[ComparedArm], baseline: str, second_baselines: Collection[str] = ()
) -> dict[str, ComparedArm]:
    """Return the arms by name, each with its group's baseline: the arm of the same recipe's arm as `baseline`.

    `second_baselines`: second cells. Where a group has no such arm, `baseline` is named as the recipe's arm.
    """
    baseline_arm = recipe_arm(arms, baseline)
    seconds = {arm.group: arm.name for arm in arms if arm.name in second_baselines}
    firsts = {
        arm.group: arm.name for arm in reversed(arms) if arm.of == baseline_arm and arm.name not in second_baselines
    }
    return {
        arm.name: replace(arm, baseline=firsts.get(arm.group, baseline_arm), again=seconds.get(arm.group))
        for arm in arms
    }


def recipe_arm(arms: Iterable[ComparedArm], name: str) -> str:
    """Return the recipe's name of an arm, the same in every group; of an unknown arm its own name."""
    return next((arm.of for arm in arms if arm.name == name), name)


def by_label(labels: Iterable[str], baseline: str) -> dict[str, ComparedArm]:
    """Return the arms of a study's files, which have no manifest: all are of the same group."""
    return with_baselines([ComparedArm(label, label) for label in labels], baseline)
