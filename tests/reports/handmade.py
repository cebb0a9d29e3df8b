"""A run and an analysis made by hand: seven arms, three tasks, three blocks, a failed cell, a hostile difference."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from benchctl.analysis.decision_results import Verdict
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.losslessness import FirstDivergence, NoiseFloor, ShapeMargin
from benchctl.analysis.next_experiment import find_decision
from benchctl.analysis.output_results import Comparison, Losslessness, SelfConsistency
from benchctl.analysis.result import Fact, Interval
from benchctl.analysis.results import Analysis, Caution
from benchctl.analysis.speed_results import Acceptance, Cost, SpeedUp, Throughput
from benchctl.data.cell import AttestationRecord, Cell, CellError
from benchctl.data.manifest import (
    ArmIdentity,
    EngineIdentity,
    FileIdentity,
    Manifest,
    ModelIdentity,
    PromptIdentity,
    RunStatus,
)
from benchctl.data.store import RunData
from benchctl.recipes.groups import by_label

TASKS = ("code", "ja_chat", "translation_en_ja")
BASELINE_RATE = 16.6
METHOD = "bootstrap over blocks, then prompts, 10 000 samples"
HOSTILE = (
    "\x1b[31mred\x1b[0m <script>alert(1)</script> \x00 \u202egnp.exe\u202c a|b `tick` ``two`` ```three``` "
    "[link](http://evil.example) ![image](https://evil.example/x.png) www.evil.example &amp; # head\n---\n\ud800 </pre>"
)
ARMS: dict[str, tuple[str, int | None, float, float | None]] = {
    "baseline": ("no speculation", None, 1.0, None),
    "spec_d2": ("draft-simple, depth 2", 2, 0.71, 0.81),
    "spec_d4": ("draft-simple, depth 4", 4, 0.57, 0.68),
    "spec_d8": ("draft-simple, depth 8", 8, 0.41, 0.47),
    "spec_d16": ("draft-simple, depth 16", 16, 0.29, 0.28),
    "ngram_simple": ("ngram-simple", None, 1.12, 0.55),
    "ngram_mod": ("ngram-mod", None, 0.995, None),
}


NOISE = NoiseFloor(
    width=5,
    floor=0.405,
    method="99 % quantile of 119 changes",
    prefixes=119,
    changed=119,
    median=0.077,
    largest=0.41,
    null_places=121,
    null_divergences=1,
)


def unit(*parts: object) -> float:
    """A number between -1 and 1 that depends on `parts` alone."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**31 - 1


def speed_word(speed: float) -> Literal["faster", "slower", "undecided"]:
    """What a speed-up this far from 1 is called."""
    return "faster" if speed > 1.05 else "slower" if speed < 0.95 else "undecided"


def build_analysis(arms: list[str], blocks: int = 3, tasks: tuple[str, ...] = TASKS) -> Analysis:
    """An analysis of `arms` (names of `ARMS`, or new ones, which are drafted at depth 4)."""
    setups = {name: ARMS.get(name, ("draft-simple, depth 4", 4, 0.8 + 0.4 * unit(name), 0.6)) for name in arms}
    speedups, acceptance, throughput, losslessness, costs, verdicts, consistency = [], [], [], [], [], [], []
    for name, (setting, depth, speed, rate) in setups.items():
        for task in (ALL_TASKS, *tasks):
            factor = speed * (1 if task == ALL_TASKS else 1 + 0.15 * unit(name, task))
            spread = [factor * (1 + 0.04 * unit(name, task, block)) for block in range(blocks)]
            if name != "baseline":
                speedups.append(
                    SpeedUp(
                        arm=name,
                        task=task,
                        pooled=factor,
                        median=factor * 1.01,
                        interval=Interval(low=min(spread) * 0.98, high=max(spread) * 1.02, method=METHOD)
                        if blocks >= 3
                        else None,
                        end_to_end=factor * 0.97,
                        length_matched=factor * 1.004,
                        by_block=spread,
                        pairs=108 if task == ALL_TASKS else 36,
                        prompts=36 if task == ALL_TASKS else 12,
                        pairs_unequal=2 if name == "spec_d8" else 0,
                        pairs_missing=4 if name == "spec_d16" else 0,
                    )
                )
            acceptance.append(_acceptance(name, task, depth, rate))
            rates = [] if task == ALL_TASKS else _rates(name, task, factor, 4 * blocks)
            pooled = BASELINE_RATE * factor if task == ALL_TASKS else None
            throughput.append(
                Throughput(
                    arm=name,
                    task=task,
                    tok_per_sec=rates,
                    median=pooled or sorted(rates)[len(rates) // 2],
                    pooled_rate=pooled,
                    ttft_median_s=0.31,
                    prompt_tok_per_sec_median=118.4,
                )
            )
        consistency.append(SelfConsistency(arm=name, prompts=12, reproducible=12, differing=[]))
        if name == "baseline":
            continue
        losslessness.append(_losslessness(name, tasks, blocks))
        costs.append(
            Cost(
                arm=name,
                depth=depth,
                alpha=None if depth is None or rate is None else min(0.97, rate + 0.08),
                draft_cost=0.31 if depth else None,
                overhead=None if depth is None else 0.55 * depth,
                predicted=None if depth is None else speed * 1.05,
                measured=speed,
                break_even_alpha={2: 0.72, 4: 0.91}.get(depth or 0),
            )
        )
        verdicts.append(
            Verdict(
                arm=name,
                setting=setting,
                speed=speed_word(speed),
                speedup=speed,
                interval=speedups[-1 - len(tasks)].interval,
                like_these=speedups[-1 - len(tasks)].interval,
                lossless="undetermined" if name == "spec_d4" else "identical",
                acceptance=rate,
                attestation="active" if rate is not None else "idle",
                reason="never fired" if rate is None else "no rounds" if depth is None else "cost",
                blocks=blocks,
            )
        )
    result = Analysis(
        run="20261121-110500-3fa9",
        recipe="qwen2.5-coder",
        baseline="baseline",
        arms=arms,
        compared=by_label(arms, "baseline"),
        tasks=list(tasks),
        blocks=blocks,
        records=len(arms) * 12 * blocks,
        failed_cells=["block 2, spec_d16: the engine exited with status -6"] if "spec_d16" in arms else [],
        verdicts=verdicts,
        speedups=speedups,
        acceptance=acceptance,
        throughput=throughput,
        losslessness=losslessness,
        consistency=consistency,
        costs=costs,
        warnings=[
            Caution(
                id="pause",
                where="block 1, baseline",
                facts=[Fact(code="text", values={"text": "A load average of 4.7 on 2 cores before the cell started."})],
            )
        ],
    )
    return decided(result)


def _rates(name: str, task: str, factor: float, count: int) -> list[float]:
    return [BASELINE_RATE * factor * (1 + 0.1 * unit(name, task, i)) for i in range(count)]


def _acceptance(name: str, task: str, depth: int | None, rate: float | None) -> Acceptance:
    if rate is None:
        unknown = ("drafted", "accepted", "rate", "rounds", "acceptance_length", "tokens_per_round")
        positions = ("position_unconditional", "position_conditional")
        return Acceptance.model_validate({"arm": name, "task": task, **dict.fromkeys((*unknown, *positions))})
    share = rate * (1 if task == ALL_TASKS else 1 + 0.12 * unit(task, name))
    return Acceptance(
        arm=name,
        task=task,
        drafted=6120,
        accepted=round(6120 * share),
        rate=share,
        rounds=1530,
        acceptance_length=1 + 4 * share,
        tokens_per_round=1.1 + 4 * share,
        position_unconditional=[share ** (1 + 0.35 * i) for i in range(depth)] if depth else None,
        position_conditional=[0.8] * depth if depth else None,
    )


DIVERGENCE = FirstDivergence(
    index=17,
    unit="token",
    agreed_text="use std::sync::",
    baseline_text="Arc;\n\nfn main() {",
    arm_text=HOSTILE,
    baseline_token=19689,
    arm_token=49,
    width=5,
    margin=0.016,
    noise_floor=0.405,
    shapes=(
        ShapeMargin(shape="decode", width=1, margin=0.016, prefers="baseline"),
        ShapeMargin(shape="verify", width=5, margin=-0.035, prefers="arm"),
    ),
    shapes_absent={"prefill": HOSTILE},
)


def _comparison(name: str, task: str, index: int, blocks: int, divergence: FirstDivergence | None) -> Comparison:
    return Comparison(
        arm=name,
        task=task,
        prompt_idx=index,
        outcome="differs" if divergence else "identical",
        reason="The answers part at token 17." if divergence else "Text and tokens are equal in every block.",
        text_equal=divergence is None,
        tokens_equal=divergence is None,
        blocks_compared=blocks,
        blocks_differing=blocks if divergence else 0,
        divergence=divergence,
    )


def _losslessness(name: str, tasks: tuple[str, ...], blocks: int) -> Losslessness:
    """Every prompt is identical, but for the second of the first task in `spec_d4`."""
    differs = name == "spec_d4"
    diverging = {(tasks[0], 1): DIVERGENCE} if differs else {}
    comparisons = [
        _comparison(name, task, index, blocks, diverging.get((task, index))) for task in tasks for index in range(4)
    ]
    bad = sum(comparison.outcome != "identical" for comparison in comparisons)
    return Losslessness(
        arm=name,
        verdict="undetermined" if differs else "identical",
        reason=f"{bad} of {len(comparisons)} prompts differ." if bad else "Every prompt is identical.",
        counts={"identical": len(comparisons) - bad, "differs": bad} if bad else {"identical": len(comparisons)},
        comparisons=comparisons,
        noise=(NOISE,) if differs else (),
    )


def decided(analysis: Analysis, manifest: Manifest | None = None) -> Analysis:
    """The analysis with what it decides: to be called again where it was changed."""
    folder = Path("results") / analysis.recipe / analysis.run
    run = RunData(folder, manifest or build_manifest(analysis), [], [])
    return analysis.model_copy(update={"decision": find_decision(analysis, run)})


def build_manifest(analysis: Analysis, status: RunStatus = "finished") -> Manifest:
    """A manifest that fits `analysis`; one cell failed."""
    sha = "3fa9" * 16
    cells = [
        Cell(
            block=block,
            arm=arm,
            order=order,
            status="failed" if (block, arm) == (2, "spec_d16") else "finished",
            started_at="2026-11-21T11:05:00+00:00",
            wall_s=61.5 + order,
            startup_s=2.4,
            load_before=0.4,
            exit_status=-6 if (block, arm) == (2, "spec_d16") else 0,
            log=f"logs/{block}-{arm}.log",
            attestation=AttestationRecord(
                state="off" if arm == analysis.baseline else "active",
                evidence=[f"log: adding speculative implementation 'draft-simple' {HOSTILE}"]
                if arm == "spec_d4"
                else ["/slots: speculative = true", "drafted 6120 tokens"],
            ),
            error=CellError(kind="crash", message="The engine exited.", log_tail=["GGML_ASSERT failed", HOSTILE])
            if (block, arm) == (2, "spec_d16")
            else None,
        )
        for block in range(analysis.blocks)
        for order, arm in enumerate(analysis.arms)
    ]
    return Manifest(
        run=analysis.run,
        benchctl_version="0.1.0",
        status=status,
        created_at="2026-11-21T11:05:00+00:00",
        finished_at="2026-11-21T11:45:10+00:00" if status == "finished" else None,
        recipe_name=analysis.recipe,
        recipe={"name": analysis.recipe, "description": HOSTILE, "blocks": analysis.blocks},
        recipe_sha256=sha,
        workload_sha256=sha,
        baseline=analysis.baseline,
        blocks=analysis.blocks,
        engine=EngineIdentity(
            kind="llama.cpp",
            binary="~/.cache/benchctl/engines/llama.cpp/bin/llama-server",
            found_in="bundled",
            version="version: 0.5.0-dev (build 1, commit 0c1e570)",
            build="1",
            commit="0c1e570",
            speculation_types=["draft-simple", "ngram-simple", "ngram-mod"],
            details={"dialect": "spec-draft", "sha256": {"llama-server": sha, "libggml.so": sha}},
        ),
        target=ModelIdentity(
            source="hf:Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            path="~/.cache/models/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            files=[FileIdentity(name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", size=1117320736, sha256=sha)],
            facts={"architecture": "qwen2", "parameters": 1543714304, "quantization": "Q4_K - Medium", "hybrid": False},
        ),
        draft=None,
        arms=[
            ArmIdentity(
                name=arm,
                baseline=arm == analysis.baseline,
                speculation=None if arm == analysis.baseline else {"type": "draft-simple", "max": 4},
                argv=["llama-server", "-m", "a model.gguf", "--port", "{port}", "-np", "1"],
                env=["OMP_WAIT_POLICY=passive"],
            )
            for arm in analysis.arms
        ],
        suite={"name": "prompts", "kind": "chat", "licence": "Apache-2.0", "sha256": sha},
        prompts=[PromptIdentity(task=task, prompt_idx=i, sha256=sha) for task in analysis.tasks for i in range(4)],
        machine={"cpu": "Intel Xeon Platinum 8481C", "cores": 2, "memory_bytes": 8 * 2**30, "accelerators": []},
        command=["benchctl", "run", "recipes/qwen2.5-coder.yaml"],
        cells=cells,
        warnings=["The governor is powersave."],
    )
