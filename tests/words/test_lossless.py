"""The reasons of verdicts in words: every code has them, and every one of them is used."""

from __future__ import annotations

import ast
import string
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.losslessness import AUDIT_LEVEL, ArmAudit, ControlTest, DetectionPower, NoiseFloor, because
from benchctl.analysis.output_results import Comparison, Losslessness
from benchctl.words import divergence, unscored
from benchctl.words import lossless as words

ROOM = Path(__file__).parents[2] / "benchctl" / "lossless"
PER_CALL = {"flawed", "unstable", "few-prefixes", "no-noise", "few", "unchanged", "quantile",
            "audit", "power", "control", "replay", "replay-deviates"}  # fmt: skip
"""Codes whose text a function makes."""


def codes_with_words() -> set[str]:
    """Return every code that has words."""
    return {*divergence.PROMPTS, *unscored.UNSCORED, *words.ARMS, *words._ARMS, *divergence._DIVERGENCES, *PER_CALL}


def test_every_code_of_the_room_has_words_and_none_is_left_over() -> None:
    texts = {
        node.value
        for file in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    calls = {
        node.args[0].value
        for file in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("because", "_because")
        if isinstance(node.args[0], ast.Constant)
    }
    assert len(calls) > 40
    assert calls <= codes_with_words()
    assert codes_with_words() <= texts


@pytest.mark.parametrize("table", [divergence.PROMPTS, unscored.UNSCORED, words.ARMS, unscored.NOISE_METHODS])
def test_sentences_have_no_place_for_what_is_not_given(table: dict[str, str]) -> None:
    for text in table.values():
        names = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        assert all(name.isidentifier() for name in names), text


COMPARISON: dict[str, Any] = {"arm": "spec", "task": "code", "prompt_idx": 0, "text_equal": True, "tokens_equal": True,
                              "blocks_compared": 2, "blocks_differing": 0}  # fmt: skip
AUDIT = ArmAudit(
    arm="spec", widths=(5,), by_prefill=False, answers=40, of=80, prompts=20, tokens=12_000, diverged=3, expected=2.5,
    p=0.4, p_adjusted=0.4, floor=0.5, beyond=0, excess_limit=0.6, prefixes=2_000, changed=1_000,
    stated=DetectionPower(nats=0.3, chance=0.6, prompts=60),
)  # fmt: skip
CONTROL = ControlTest(
    arm="spec", prompts=24, tested=20, outside=3, varying=2, repeated=4, against="arm", control="sound", differing=3,
    tests=1, arms_answers=2, controls_answers=2, p=0.125, p_adjusted=0.25, power=0.5,
)  # fmt: skip


def of_arm(code: str, **values: Any) -> str:
    judged = Losslessness(
        arm="spec", verdict="undetermined", reasons=(because(code, **values),), counts={}, comparisons=[],
        audit=AUDIT, control=CONTROL,
    )  # fmt: skip
    return words.worded(judged).reason


def test_an_audit_reads_as_a_sentence() -> None:
    assert of_arm("audit") == (
        "Scored on the target alone, token by token, 12,000 tokens of 40 answers, sampled from 80, diverge from its "
        "likeliest token 3 times; its own noise at the arm's verify width explains 2.5 (p = 0.4; the arm adds at most "
        "0.6 divergences per 1,000 tokens, at 95 %)."
    )
    violating = AUDIT.model_copy(update={"beyond": 2, "p_adjusted": AUDIT_LEVEL / 4})
    assert words.audit_sentence(violating).endswith(
        "explains 2.5. It does not explain 2 divergences at margins above 0.5 nats, nor where and how often the arm "
        "diverges (p = 0.4)."
    )
    assert of_arm("power") == (
        "No violation found, and a fault would be noticed 60 times in 100 (power): too seldom, about 60 prompts like "
        "these are needed."
    )


def test_noise_says_what_was_read_at_once() -> None:
    noise = NoiseFloor(
        width=5, floor=0.7771, method="", prefixes=1003, changed=900, median=0.1, largest=1.0, largest_at_small=0.5,
        null_places=1003, null_divergences=20,
    )  # fmt: skip
    assert words.noise_sentence(noise) == (
        "Numeric noise of the target at verify width 5: 0.777 nats. Reading 5 tokens at once instead of one, it "
        "diverges from itself at 20 of 1,003 prefixes."
    )


def test_a_control_reads_as_a_sentence() -> None:
    assert of_arm("control") == (
        "3 of 24 prompts got an answer that the baseline never gave; the baseline's own 4 answers vary at 2. No "
        "violation found, and a fault that changes one answer in four would be noticed 50 times in 100 (exact test by "
        "prompt against sound, an arm of the same verify width: 3 of 20 prompts, p = 0.12)."
    )
    unknown = words.control_sentence(CONTROL.model_copy(update={"power": None}))
    assert "No violation found (exact test by prompt " in unknown


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"near_ties": 3}, "3 of 9 prompts got another answer than from the target alone, which first diverges at a "),
        ({"violations": 3}, "alone; the target's numeric noise does not explain any of them."),
        (
            {"violations": 2, "near_ties": 1},
            "alone; the target's numeric noise does not explain 2 of them, and 1 are near-ties.",
        ),
        (
            {"undetermined": 4},
            "3 of 9 prompts got another answer than from the target alone; 4 could not be determined.",
        ),
        ({"diverging": False}, "3 of 9 prompts got another ending than from the target alone."),
    ],
)
def test_an_arm_that_differs_is_described(values: dict[str, Any], text: str) -> None:
    counts = {"differing": 3, "prompts": 9, "near_ties": 0, "violations": 0, "undetermined": 0, "diverging": True}
    assert text in of_arm("differing", **counts | values)


def test_an_undetermined_arm_names_its_first_prompt_and_lost_lines() -> None:
    flawed = because("flawed", flaws="The record of block 1, spec is missing.")
    unknown = Comparison(**COMPARISON, outcome="undetermined", reasons=(flawed,))
    judged = Losslessness(
        arm="spec", verdict="undetermined", reasons=(because("undetermined", prompts=2, lost_lines=1),), counts={},
        comparisons=[unknown],
    )  # fmt: skip
    judged = words.worded(judged)
    assert judged.comparisons[0].reason == "The record of block 1, spec is missing."
    assert judged.reason == (
        "1 of 2 prompts could not be determined (code/0: The record of block 1, spec is missing); 1 damaged line may "
        "have been of this arm."
    )


NOISE: dict[str, Any] = {"unit": "token", "index": 7, "margin": 0.05, "margin_is_least": False, "width": 5,
                         "by_prefill": False, "floor": 0.4, "method": "none", "chosen": False,
                         "invariant": None}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "values", "text"),
    [
        ("near-tie", {}, "alone prefers its own token by 0.050 nats there; reading 5 tokens at once instead of one "),
        ("near-tie", {"chosen": True}, ". Reading 5 tokens at once, the target alone chooses the arm's token."),
        ("not-noise", {"margin_is_least": True}, " on and numeric noise does not explain it: the target alone prefers "
         "its own token by at least 0.050 nats"),
        ("not-noise", {"width": 1}, "; no draft had been verified before it, so that nothing was read at once."),
        ("not-noise", {"invariant": "FIXED=1"}, "0.050 nats there; FIXED=1 promises the same numbers in any batch."),
        ("tie", {}, ", an exact tie: the target alone gives both tokens the same probability"),
        ("not-noise", {"floor": 0.0, "by_prefill": True}, "everything at once instead of token by token changes"),
    ],
)  # fmt: skip
def test_a_divergence_is_described(code: str, values: dict[str, Any], text: str) -> None:
    sentence = divergence.prompt_sentence(because(code, **NOISE | values))
    assert sentence.startswith("The answer differs from token 7 on")
    assert text in sentence
