"""A run read a second time: plain Python over its stored files, by the definitions of docs/method.md.

It imports nothing of benchctl, so that a number on a page that agrees with this one was not copied from itself.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from scipy.stats import f as fisher
from scipy.stats import t as student

ALL = "all"
Row = dict[str, Any]
Pair = tuple[Row, Row]
Variance = tuple[float, float]
"""With its degrees of freedom."""


@dataclass
class Arm:
    """What an arm was, by the manifest and the recipe in it."""

    name: str
    setting_name: str
    conditions: tuple[Any, ...]
    """How the target computes and how it is asked; arms of one baseline agree in all of it."""
    is_second_cell: bool
    setting: Row | None
    part: str | None
    axes: dict[str, str]
    memory_bytes: int | None
    engine: str | None
    target: str | None
    draft: str | None
    argv: list[str]
    one_at_a_time: bool
    slots: int = 1
    """Requests of a closed loop in flight at a time; 1 for an open loop."""
    synthetic: bool = False
    attested: set[str] = field(default_factory=set)
    baseline: str = ""
    second: str | None = None

    @property
    def depth(self) -> int | None:
        """The one depth to which a model (or the target itself) drafts, by the recipe."""
        kind, depth = (self.setting or {}).get("type", ""), (self.setting or {}).get("max")
        copied = not isinstance(kind, str) or kind.startswith(("ngram", "suffix", "prompt-lookup"))
        return depth if isinstance(depth, int) and not copied else None


class Reading:
    """A run's numbers from its files, each for one arm and its own baseline."""

    def __init__(self, path: Path, baseline: str = "baseline") -> None:
        self.folder = path if path.is_dir() else path.parent
        lines = (path / "records.jsonl" if path.is_dir() else path).read_text(encoding="utf-8").splitlines()
        self.manifest: Row = json.loads((path / "manifest.json").read_text()) if path.is_dir() else {}
        records = [json.loads(line) for line in lines if line.strip()]
        self.processes: dict[tuple[str, int, int], set[tuple[str, int, int]]] = {}
        for number, record in enumerate(records):  # an answer that was stored twice is an answer; warm-ups may be alike
            block = record["block"] if record.get("schema") else record["rep"]
            warm_up = number if record.get("phase", "measure") == "warmup" else -1
            process = self.processes.setdefault((record["label"], block, record.get("attempt", 0)), set())
            process.add((record["task"], record["prompt_idx"], warm_up))
        self.arms = self._arms(baseline, [record["label"] for record in records])
        failed = {
            (cell["block"], cell["arm"])
            for cell in self.manifest.get("cells", [])
            if (cell.get("attestation") or {}).get("state") == "failed"
        }
        self.at: dict[tuple[str, str, int, int], Row] = {}
        self._as_one: dict[str, set[tuple[str, int]]] = {}
        for record in records:
            block = record["block"] if record.get("schema") else record["rep"]
            if record.get("phase", "measure") == "measure" and (block, record["label"]) not in failed:
                key = (record["label"], record["task"], record["prompt_idx"], block)
                if not record.get("error"):  # of several attempts the last good one
                    self.at[key] = record
        for key in [
            key for key in self.at if (key[0], key[3]) in self.disturbed
        ]:  # the answer counts, its speed does not
            self.at[key] = {**self.at[key], "tok_per_sec": None, "client_tok_per_sec": None}
        planned = [(prompt["task"], prompt["prompt_idx"]) for prompt in self.manifest.get("prompts", [])]
        self.prompts = list(dict.fromkeys([*planned, *sorted({key[1:3] for key in self.at})]))
        self.tasks = list(dict.fromkeys(task for task, _ in self.prompts))
        self.blocks = sorted({key[3] for key in self.at} | set(range(self.manifest.get("blocks") or 0)))

    def _arms(self, baseline: str, labels: list[str]) -> dict[str, Arm]:
        manifest, recipe = self.manifest, self.manifest.get("recipe", {})
        setups: dict[str, Row] = {setup["name"]: setup for setup in manifest.get("setups", [])}
        planned: dict[str, Row] = {setup["name"]: setup for setup in recipe.get("setups", [])}
        planned_arms: dict[str, Row] = {arm["name"]: arm for arm in recipe.get("arms", [])}
        arms: dict[str, Arm] = {}
        for arm in manifest.get("arms", []):
            setup = setups.get(arm.get("setup") or "", manifest)
            plan = planned.get(arm.get("setup") or "") or recipe
            cache = (planned_arms.get(arm["name"], {}).get("cache_type") or {}).get("target")
            binary = (setup["engine"] or {}).get("binary")
            target: Row = setup.get("target") or {}
            condition = (arm.get("context_length"), arm.get("concurrency", 1), arm.get("rate"), arm.get("temperature"),
                         arm.get("max_tokens"))  # fmt: skip
            computes = (_sha(target), binary, json.dumps(plan.get("engine"), sort_keys=True), cache)
            length = None if condition[0] is None else f"ctx{condition[0]}"
            answers = None if condition[4] is None else f"n{condition[4]}"
            uses_draft = str((arm.get("speculation") or {}).get("type", "")).startswith(("draft-", "assisted"))
            arms[arm["name"]] = Arm(
                name=arm["name"],
                setting_name=arm.get("of") or arm["name"],
                conditions=(*computes, *condition),
                is_second_cell=bool(arm.get("again")),
                setting=arm.get("speculation"),
                part="-".join(filter(None, (arm.get("group"), length, answers))) or None,
                axes=(setup if arm.get("setup") else {}).get("axes", {}),
                memory_bytes=arm.get("memory_bytes"),
                engine=setup["engine"]["kind"],
                target=target.get("source"),
                draft=(setup.get("draft") or {}).get("source") if uses_draft else None,
                argv=arm.get("argv") or [],
                one_at_a_time=condition[1] == 1 and condition[2] is None,
                slots=condition[1] if condition[2] is None else 1,
                synthetic="--spec-synth-rates" in (arm.get("argv") or []),
            )
        for label in labels:  # a study's file has nothing else
            arms.setdefault(
                label, Arm(label, label, (), False, None, None, {}, None, None, None, None, [], one_at_a_time=True)
            )
        for cell in manifest.get("cells", []):
            if cell["arm"] in arms and cell.get("attestation"):
                arms[cell["arm"]].attested.add(cell["attestation"]["state"])
        name = manifest.get("baseline", baseline)
        setting = arms[name].setting_name
        for row in arms.values():
            alike = [arm for arm in arms.values() if arm.conditions == row.conditions]
            first_cells = [arm.name for arm in alike if arm.setting_name == setting and not arm.is_second_cell]
            row.baseline = next(iter(first_cells), "")
            row.second = next((arm.name for arm in alike if arm.is_second_cell), None)
        return arms

    @cached_property
    def disturbed(self) -> set[tuple[str, int]]:
        """The (arm, block) of cells far slower than others of their arm: docs/method.md, "Which cells count"."""
        paces: dict[str, dict[tuple[str, int], dict[int, float]]] = {}
        for (arm, task, index, block), record in self.at.items():
            if self.arms[arm].one_at_a_time and rate(record):
                paces.setdefault(arm, {}).setdefault((task, index), {})[block] = math.log(1 / rate(record))
        slowness: dict[str, dict[int, float]] = {}
        for arm, prompts in paces.items():
            distances: dict[int, list[float]] = {}
            for of_prompt in prompts.values():
                middle = statistics.median(of_prompt.values())
                for block, pace in of_prompt.items():
                    distances.setdefault(block, []).append(pace - middle)
            slowness[arm] = {block: statistics.median(values) for block, values in distances.items()}
        cells = set()
        for arm, by_block in slowness.items():
            group = [name for name in slowness if self.arms[name].baseline == self.arms[arm].baseline]
            deviation = statistics.median(abs(value) for name in group for value in slowness[name].values())
            limit = max(-math.log(1 - 0.15), 5 * deviation / 0.6745)
            cells |= {(arm, block) for block, value in by_block.items() if len(by_block) >= 4 and value > limit}
        return cells

    def blocks_of(self, arm: str) -> list[int]:
        """The blocks in which an arm was to be measured: fewer than the run's where it was decided before the last."""
        started = [cell["block"] for cell in self.manifest.get("cells", []) if cell["arm"] == arm]
        until = max(started, default=0) if isinstance(self.manifest.get("stopped"), dict) else math.inf
        return [block for block in self.blocks if block <= until]

    @property
    def speculating(self) -> list[str]:
        """The arms that are compared with a baseline; a second cell of it is none of them."""
        return [arm.name for arm in self.arms.values() if arm.name != arm.baseline and not arm.is_second_cell]

    # Answers.

    def rows(self, arm: str, task: str = ALL) -> list[Row]:
        """The good answers of an arm."""
        return [record for key, record in self.at.items() if key[0] == arm and task in (ALL, key[1])]

    def scope(self, arm: str) -> Row:
        """What the verdict on an arm's output is about."""
        rows = self.rows(arm)
        planned: Row = next((row for row in self.manifest.get("arms", []) if row["name"] == arm), {})
        ends: Row = {}
        for key in ("prompt_tokens", "n_predicted"):
            lengths = [row[key] for row in rows if row.get(key) is not None]
            ends[key] = [min(lengths), max(lengths)] if lengths and len(lengths) == len(rows) else None
        return {
            "requests_per_process": max(
                (len(keys) for (name, *_), keys in self.processes.items() if name == arm), default=0
            ),
            "prompts": len(self.prompts),
            "prompt_tokens": ends["prompt_tokens"],
            "answer_tokens": ends["n_predicted"],
            "concurrency": planned.get("concurrency", 1),
        }

    def pairs(self, arm: str, task: str = ALL, block: int | None = None, *, timed: bool = True) -> list[Pair]:
        """An arm's answers beside those of its own baseline to the same prompt in the same block."""
        pairs = []
        for key, record in self.at.items():
            if key[0] == arm and task in (ALL, key[1]) and block in (None, key[3]):
                theirs = self.at.get((self.arms[arm].baseline, *key[1:]))
                if theirs and not (timed and not (rate(record) and rate(theirs))):
                    pairs.append((record, theirs))
        return pairs

    def _second(self, arm: str, theirs: Row) -> Row | None:
        """The second cell's answer beside the baseline's, for every arm but the second cell itself."""
        twin = self.arms[arm].second
        if twin is None or twin == arm:
            return None
        block = theirs["block"] if theirs.get("schema") else theirs["rep"]
        return self.at.get((twin, theirs["task"], theirs["prompt_idx"], block))

    def _baseline_s(self, arm: str, theirs: Row) -> float:
        first, second = decode_s(theirs), self._second(arm, theirs)
        if second is None or not rate(second):
            return first
        return float((first + decode_s(second) / (second["n_predicted"] - 1) * (theirs["n_predicted"] - 1)) / 2)

    def _baseline_e2e(self, arm: str, theirs: Row) -> float:
        first, second = theirs["e2e_s"], self._second(arm, theirs)
        if second is None or not second.get("e2e_s"):
            return float(first)
        return float((first + second["e2e_s"] / second["n_predicted"] * theirs["n_predicted"]) / 2)

    # Speed.

    def pooled(self, arm: str, task: str = ALL, block: int | None = None) -> float | None:
        """Σ decoded tokens / Σ decode time, over the baseline's."""
        return _ratio([self._sums(arm, *pair) for pair in self.pairs(arm, task, block)])

    def _sums(self, arm: str, ours: Row, theirs: Row) -> tuple[float, float, float, float]:
        """Tokens and time of a pair; an answer that counts as 1.00× has the baseline's pace."""
        tokens, base_tokens, base_s = ours["n_predicted"] - 1, theirs["n_predicted"] - 1, self._baseline_s(arm, theirs)
        as_one = (ours["task"], ours["prompt_idx"]) in self._counted_as_one(arm)
        return tokens, tokens * base_s / base_tokens if as_one else decode_s(ours), base_tokens, base_s

    def _counted_as_one(self, arm: str) -> set[tuple[str, int]]:
        """The prompts for which an arm that copies text never drafted, where they ran within 2 % of the baseline."""
        if arm not in self._as_one:
            self._as_one[arm] = set()
            kind = (self.arms[arm].setting or {}).get("type") or ""
            copies = all(name.startswith(("ngram", "suffix", "prompt-lookup")) for name in
                         ([kind] if isinstance(kind, str) else kind))  # fmt: skip
            prompts = {(row["task"], row["prompt_idx"]) for row in self.rows(arm)}
            drafted = {(row["task"], row["prompt_idx"]) for row in self.rows(arm) if row.get("draft_n") != 0}
            idle = prompts - drafted
            if kind and copies and drafted and idle and self.arms[arm].one_at_a_time:
                logs = []
                for block in self.blocks:
                    pairs = [pair for pair in self.pairs(arm, block=block)
                             if (pair[0]["task"], pair[0]["prompt_idx"]) in idle]  # fmt: skip
                    if (ratio := _ratio([self._sums(arm, *pair) for pair in pairs])) is not None:
                        logs.append(math.log(ratio))
                idle_pairs = [pair for pair in self.pairs(arm) if (pair[0]["task"], pair[0]["prompt_idx"]) in idle]
                middle = _ratio([self._sums(arm, *pair) for pair in idle_pairs])
                if len(logs) >= 3 and middle is not None:
                    half = float(student.ppf(0.975, len(logs) - 1)) * statistics.stdev(logs) / len(logs) ** 0.5
                    if middle * math.exp(-half) >= 0.98 and middle * math.exp(half) <= 1.02:
                        self._as_one[arm] = idle
        return self._as_one[arm]

    def speed(self, arm: str, task: str = ALL) -> Row:
        """The speed-ups of an arm by every definition."""
        pairs = self.pairs(arm, task)
        matched, ratios, waited = [], [], []
        for ours, theirs in pairs:
            tokens, seconds, base_tokens, base_s = self._sums(arm, ours, theirs)
            ratios.append(tokens / seconds / (base_tokens / base_s))
            common = min(tokens, base_tokens)
            matched.append((common, common * seconds / tokens, common, common * base_s / base_tokens))
            if ours.get("e2e_s") and theirs.get("e2e_s"):
                times = ours["e2e_s"], self._baseline_e2e(arm, theirs)
                waited.append((ours["n_predicted"], times[0], theirs["n_predicted"], times[1]))
        blocks = [value for block in self.blocks if (value := self.pooled(arm, task, block))]
        requested = len([prompt for prompt in self.prompts if task in (ALL, prompt[0])]) * len(self.blocks_of(arm))
        endings = [(answer["n_predicted"], answer.get("finish_reason")) for pair in pairs for answer in pair]
        sums = [sum(column) for column in zip(*(self._sums(arm, *pair) for pair in pairs), strict=True)]
        return {
            "pooled": self.pooled(arm, task),
            "decode_rate": sums[0] / sums[1] if sums else None,
            "baseline_rate": sums[2] / sums[3] if sums else None,
            "median": statistics.median(ratios) if ratios else None,
            "end_to_end": _ratio(waited),
            "ttft_ratio": _ratio(
                [(a["ttft_s"], 1, b["ttft_s"], 1) for a, b in pairs if a.get("ttft_s") and b.get("ttft_s")]
            ),
            "length_matched": _ratio(matched),
            "by_block": blocks,
            "lowest_block": min(blocks) if len(blocks) > 1 else None,
            "highest_block": max(blocks) if len(blocks) > 1 else None,
            "pairs": len(pairs),
            "pairs_unequal": sum(ours != theirs for ours, theirs in zip(endings[::2], endings[1::2], strict=True)),
            "pairs_missing": requested - len(self.pairs(arm, task, timed=False)),
        }

    def intervals(self, arm: str, task: str = ALL) -> dict[str, tuple[float, float] | None]:
        """The three intervals of a speed-up, by docs/method.md, "Intervals"; empty below three blocks."""
        auto = self.manifest.get("recipe", {}).get("blocks")
        level = 0.95 if not isinstance(auto, dict) else 0.97 if auto.get("half_width") else 0.992
        ours = self.arms[arm]
        measured = self.blocks_of(arm)
        variances: dict[str, Variance] = {}
        for name in self.speculating:
            if (self.arms[name].baseline, self.arms[name].synthetic) == (ours.baseline, ours.synthetic):
                logs = [math.log(value) for block in measured if (value := self.pooled(name, task, block))]
                if len(logs) >= 3:
                    variances[name] = statistics.variance(logs), len(logs) - 1
        middle = self.pooled(arm, task)
        if arm not in variances or middle is None:
            return {}
        number = variances[arm][1] + 1
        spread, freedom = _shared(variances.pop(arm), list(variances.values()))
        claims = max(1, sum(not self.arms[name].synthetic for name in self.speculating))
        claims *= 1 if task == ALL else len(self.tasks)
        mean = spread / number, freedom
        return {
            "pointwise": _ends(middle, mean, level),
            "interval": _ends(middle, mean, 1 - (1 - level) / claims),
            "like_these": self._like_these(arm, task, middle, mean, level),
        }

    def _like_these(
        self, arm: str, task: str, middle: float, mean: Variance, level: float
    ) -> tuple[float, float] | None:
        """With the variance of leaving out one prompt at a time within its task."""
        sums: dict[tuple[str, int], list[float]] = {}
        for ours, theirs in self.pairs(arm, task):
            prompt = sums.setdefault((ours["task"], ours["prompt_idx"]), [0.0] * 4)
            for column, value in enumerate(self._sums(arm, ours, theirs)):
                prompt[column] += value
        if len(sums) < 3:
            return None
        strata: dict[str, list[list[float]]] = {}
        for (name, _), prompt in sums.items():
            strata.setdefault(name, []).append(prompt)
        if min(map(len, strata.values())) < 2:  # a task of one prompt shows no spread
            strata = {ALL: list(sums.values())}
        everything = [sum(column) for column in zip(*sums.values(), strict=True)]
        jackknife = 0.0
        for prompts in strata.values():
            size = len(prompts)
            stratum = [sum(column) for column in zip(*prompts, strict=True)]
            logs = []
            for prompt in prompts:  # the others of its task stand for the whole task
                without = [all_ - (size * of_prompt - of_task) / (size - 1)
                           for all_, of_prompt, of_task in zip(everything, prompt, stratum, strict=True)]  # fmt: skip
                logs.append(math.log(without[0] / without[1] / (without[2] / without[3])))
            jackknife += (size - 1) * statistics.pvariance(logs)
        seconds = [prompt[3] for prompt in sums.values()]
        freedom = max(1.0, sum(seconds) ** 2 / sum(second**2 for second in seconds) - 1)
        total = mean[0] + jackknife
        widened = total, total**2 / (mean[0] ** 2 / mean[1] + jackknife**2 / freedom)
        lows, highs = zip(_ends(middle, mean, level), _ends(middle, widened, level), strict=True)
        return min(lows), max(highs)

    def throughput(self, arm: str, task: str) -> Row:
        """Medians and means of an arm's own answers."""
        rows = self.rows(arm, task)
        rates = [rate(row) for row in rows if rate(row)]
        timed = [(row["n_predicted"] - 1, rate(row)) for row in rows if rate(row)]
        seconds = sum(tokens / speed for tokens, speed in timed)
        bursts = [row for row in rows if row.get("burst_gaps_s")]
        gaps = [gap for row in bursts for gap in row["burst_gaps_s"]]
        of_prompt: dict[tuple[str, int], list[Row]] = {}
        for row in rows:
            if rate(row):
                of_prompt.setdefault((row["task"], row["prompt_idx"]), []).append(row)
        return {
            "rates": rates,
            "mean_rate": _mean(
                [
                    sum(row["n_predicted"] - 1 for row in alike) / sum(map(decode_s, alike))
                    for alike in of_prompt.values()
                ]
            ),
            "median": _median(rates),
            "pooled_rate": sum(tokens for tokens, _ in timed) / seconds if seconds else None,
            "ttft_median_s": _median([row.get("ttft_s") for row in rows]),
            "burst_gap_median_s": _median(gaps),
            "burst_gap_p95_s": statistics.quantiles(gaps, n=20, method="inclusive")[-1] if len(gaps) >= 40 else None,
            "tokens_per_burst": sum(row["n_predicted"] for row in bursts) / (len(gaps) + len(bursts))
            if bursts
            else None,
            "prompt_tok_per_sec_median": _median([row.get("prompt_per_sec") for row in rows]),
            "records": len(rates),
        }

    def cells(self, arm: str, blocks: list[int] | None = None) -> list[list[Row]]:
        """The good answers of an arm with a known time, block by block."""
        by_block: dict[int, list[Row]] = {}
        for key, record in self.at.items():
            if key[0] == arm and record.get("e2e_s") and (blocks is None or key[3] in blocks):
                by_block.setdefault(key[3], []).append(record)
        return list(by_block.values())

    def load(self, arm: str, blocks: list[int] | None = None) -> Row:
        """What all requests of an arm got together: docs/method.md, "Concurrency"."""
        cells = self.cells(arm, blocks)
        rows = [row for cell in cells for row in cell]
        tokens, waited = sum(row["n_predicted"] for row in rows), sum(row["e2e_s"] for row in rows)
        one_at_a_time = self.arms[arm].one_at_a_time
        makespan = waited if one_at_a_time else sum(map(_makespan, cells))
        windows = [_full_window(cell, self.arms[arm].slots) for cell in cells]
        if self.arms[arm].slots == 1:
            windows = [(makespan, tokens)]
        seconds = sum(window for window, _ in windows)
        return {
            "requests": len(self.rows(arm)),
            "tokens": tokens,
            "makespan_s": makespan,
            "window_s": seconds,
            "drain_share": 1 - seconds / makespan if rows else None,
            "throughput": sum(inside for _, inside in windows) / seconds if rows else None,
            "in_flight": waited / makespan if rows else None,
        }

    def load_speedup(self, arm: str, blocks: list[int] | None = None) -> tuple[float, list[float]]:
        """Total throughput over the baseline's: over these blocks, and in each."""
        blocks = self.blocks if blocks is None else blocks
        pooled, *by_block = (
            self.load(arm, chosen)["throughput"] / self.load(self.arms[arm].baseline, chosen)["throughput"]
            for chosen in (blocks, *([block] for block in blocks))
        )
        return pooled, by_block

    def latency_speedup(self, arm: str) -> tuple[float, list[float]]:
        """Tokens over the requests' whole times, over the baseline's: over all blocks, and in each."""
        pairs = {block: self.pairs(arm, block=block) for block in self.blocks}
        sums = {
            block: [(a["n_predicted"], a["e2e_s"], b["n_predicted"], self._baseline_e2e(arm, b)) for a, b in of_block]
            for block, of_block in pairs.items()
        }
        pooled, *by_block = (_ratio(rows) for rows in ([row for rows in sums.values() for row in rows], *sums.values()))
        return pooled or 0.0, [ratio or 0.0 for ratio in by_block]

    def latencies(self, arm: str) -> dict[str, list[float]]:
        """Times of a request: to the first token, to the last byte, for a token after the first."""
        rows = self.rows(arm)
        return {
            "ttft": [row["ttft_s"] for row in rows],
            "e2e": [row["e2e_s"] for row in rows],
            "tpot": [1 / rate(row) for row in rows],
        }

    # Acceptance and what a round costs.

    def acceptance(self, arm: str, task: str = ALL) -> Row:
        """The counters of an arm, added up over the answers whose counters contradict nothing."""
        rows = [row for row in self.rows(arm, task) if row.get("draft_n") is not None and sound(row)]
        if not rows:
            return {}
        drafted, accepted = (sum(row[key] or 0 for row in rows) for key in ("draft_n", "draft_n_accepted"))
        with_rounds = [row for row in rows if row.get("rounds")]
        reported = bool(rows) and all(row.get("rounds") is not None for row in rows)
        rounds = sum(row["rounds"] for row in with_rounds) if reported else None
        decoded = sum(row["n_predicted"] - 1 for row in rows)
        by_answer = [row["accepted_by_position"] for row in rows if row.get("accepted_by_position")]
        width = max(map(len, by_answer), default=0)
        by_place = [
            sum(counts[position] for counts in by_answer if position < len(counts)) for position in range(width)
        ]
        before = [rounds, *by_place]  # a position is reached after the one before it, and where a draft has it
        drafts = [row["drafted_by_position"] for row in rows if row.get("drafted_by_position")]
        if drafts:
            before = [min(count, sum(draft[position] for draft in drafts if position < len(draft)))
                      for position, count in enumerate(before[:width])]  # fmt: skip
        return {
            "drafted": drafted,
            "accepted": accepted,
            "rate": accepted / drafted if drafted else None,
            "rounds": rounds,
            "acceptance_length": 1 + accepted / rounds if rounds else None,
            "tokens_per_round": sum(row["n_predicted"] - 1 for row in with_rounds) / rounds if rounds else None,
            "tokens_per_step": decoded / (decoded - accepted) if decoded > accepted else None,
            "rate_by_request": _mean([row["draft_n_accepted"] / row["draft_n"] for row in rows if row["draft_n"]]),
            "rate_by_task": self._rate_by_task(arm) if task == ALL else None,
            "position_unconditional": [counts / rounds for counts in by_place] if rounds else None,
            "position_conditional": [
                count / reached for count, reached in zip(by_place, before, strict=False) if reached
            ]
            if rounds
            else None,
        }

    def _rate_by_task(self, arm: str) -> float | None:
        return _mean([value for task in self.tasks if (value := self.acceptance(arm, task).get("rate")) is not None])

    def round(self, arm: str, task: str = ALL) -> Row:
        """What a verify round took, in seconds and in steps of the arm's own baseline, and what it yielded."""
        pairs = [
            (ours, theirs)
            for ours, theirs in self.pairs(arm, task)
            if ours.get("rounds") is not None and ours.get("draft_n_accepted") is not None and sound(ours)
        ]
        rounds = sum(ours["rounds"] for ours, _ in pairs)
        if not rounds:  # of requests that share the engine llama.cpp counts none
            return {"depth": self._depth(arm)}
        decoded = sum(ours["n_predicted"] - 1 for ours, _ in pairs)
        accepted = sum(ours["draft_n_accepted"] for ours, _ in pairs)
        seconds = sum(decode_s(ours) for ours, _ in pairs)
        base_tokens = sum(theirs["n_predicted"] - 1 for _, theirs in pairs)
        step_s = sum(self._baseline_s(arm, theirs) for _, theirs in pairs) / base_tokens
        plain = max(0, decoded - rounds - accepted)
        priced = rounds / (rounds + plain) >= 1 / 3  # else few rounds carry the noise of the plain steps
        cost = (seconds / step_s - plain) / rounds
        depth, alpha = self._depth(arm), None
        if priced and depth:
            alpha = solve(self.acceptance(arm)["acceptance_length"], depth)
        return {
            "rounds": rounds,
            "seconds": seconds / rounds,
            "tokens": decoded / rounds,
            "drafted_round_tokens": 1 + accepted / rounds,
            "step_s": step_s,
            "baseline_s": decoded / rounds * step_s,
            "cost": cost if priced else None,
            "overhead": cost - 1 if priced else None,
            "depth": depth,
            "alpha": alpha,
            "predicted": expected(alpha, depth) / cost if alpha is not None and depth else None,
            "break_even_alpha": solve(cost, depth) if priced and depth and cost <= depth + 1 else None,
            "draft_step_s": self._draft_step(pairs),
        }

    def _depth(self, arm: str) -> int | None:
        """The depth, where rounds draft seven tenths of it on average at least, as far as that is reported."""
        depth, counted = self.arms[arm].depth, self.acceptance(arm)
        if not depth or not counted.get("drafted") or not counted.get("rounds"):
            return depth
        return depth if counted["drafted"] / counted["rounds"] >= 0.7 * depth else None

    def _draft_step(self, pairs: list[Pair]) -> float | None:
        phases = [ours.get("phase_s") or {} for ours, _ in pairs if ours.get("draft_n")]
        drafted = sum(ours["draft_n"] or 0 for ours, _ in pairs)
        return (
            sum(phase["draft"] for phase in phases) / drafted if phases and all("draft" in p for p in phases) else None
        )

    # Output.

    def same_answer(self, arm: str, task: str, index: int) -> list[bool]:
        """For each block, whether text and tokens are those of the arm's own baseline."""
        pairs = [pair for pair in self.pairs(arm, task, timed=False) if pair[0]["prompt_idx"] == index]
        return [all(ours.get(key) == theirs.get(key) for key in ("content", "finish_reason")) for ours, theirs in pairs]

    def texts(self, arm: str, task: str, index: int) -> list[str]:
        """An arm's answers to a prompt, of all blocks."""
        return [row["content"] for row in self.rows(arm, task) if row["prompt_idx"] == index]

    def scores(self, part: str | None) -> Row | None:
        """The scores of the target of this part of the run."""
        file = self.folder / f"scores{'-' + part if part else ''}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def readings(self, arm: str, task: str, index: int, fork: Row) -> dict[str, Row]:
        """The log-probabilities of both tokens at a divergence, by the target of the arm's own part, by shape."""
        key = (task, index, fork["index"], fork["baseline_token"], fork["arm_token"])
        for scored in (self.scores(self.arms[arm].part) or {}).get("positions", []):
            if (
                tuple(scored[name] for name in ("task", "prompt_idx", "index", "token", "rival")) == key
                and scored["fork"]
            ):
                return {f"{reading['shape']} {reading['width']}": reading for reading in scored["readings"]}
        return {}

    def losses(self, part: str | None, width: int) -> list[tuple[float, float]]:
        """(margin, loss) at every prefix that the target of this part read alone and `width` tokens at a time."""
        audit = self.scores(part)
        if audit is not None and any(scored_pass["width"] == width for scored_pass in audit["passes"]):
            answers = {
                (answer["task"], answer["prompt_idx"], answer["token_sha"]): answer["margins"]
                for answer in audit["answers"]
            }
            return [
                (answers[scored_pass["task"], scored_pass["prompt_idx"], scored_pass["token_sha"]][scored], loss)
                for scored_pass in audit["passes"]
                if scored_pass["width"] == width and scored_pass["slots"] == 1
                for scored, loss in zip(scored_pass["places"], scored_pass["losses"], strict=True)
            ]
        losses = []
        for scored in (self.scores(part) or {}).get("positions", []):
            margin = {(shape["shape"], shape["width"]): shape["token"] - shape["rival"] for shape in scored["readings"]
                      if shape["token"] is not None and shape["rival"] is not None}  # fmt: skip
            single, widths = margin.get(("decode", 1)), (width, min(width, scored["index"]))  # no more than there are
            at_once = next((margin["verify", width] for width in widths if ("verify", width) in margin), None)
            if single is not None and at_once is not None and not scored["fork"]:
                losses.append((single, single - at_once))
        return losses

    def tokens_of(self, part: str | None) -> int:
        """All tokens that the part's arms answered in one block, those of a second cell among them."""
        arms = [
            arm.name
            for arm in self.arms.values()
            if arm.part == part and arm.name != arm.baseline and arm.one_at_a_time
        ]
        return sum(row["n_predicted"] for arm in arms for row in self.rows(arm) if (row.get("block") or 0) == 0)

    @cached_property
    def parts(self) -> list[str | None]:
        """The parts of the run that one target scores."""
        return list(dict.fromkeys(arm.part for arm in self.arms.values()))


def noise_floor(losses: list[tuple[float, float]], tokens: int) -> float | None:
    """The margin that the noise of so many tokens exceeds anywhere in 1 of 200 runs: docs/method.md, "Divergences"."""
    count, changed = len(losses), sum(loss != 0 for _, loss in losses)
    if count < 20 and changed < 5:
        return None
    if not changed:
        return 0.0
    limit = max(1.0, sorted(margin for margin, _ in losses)[: min(40, count)][-1])
    ordered = sorted(loss for margin, loss in losses if margin <= limit)
    if sum(loss > 0 for loss in ordered) < 10:
        ordered = sorted(sign * abs(loss) for loss in ordered for sign in (1, -1))
    beyond = min(sum(loss > 0 for loss in ordered), max(10, round(len(ordered) / 20)))
    start = max(0.0, max((loss for loss in ordered[:-beyond] if loss < ordered[-beyond]), default=0.0))
    excess = [loss - start for loss in ordered if loss > start]
    number, mean = len(excess), statistics.mean(excess)
    density = (sum(margin <= 1 for margin, _ in losses) + 1) / (count + 1)
    # ∫ P(loss > m) dm above a margin x beyond `start`: the tail (1 + x / (n·mean))^-n, integrated.
    area = 0.005 / (max(tokens, 1000) * density)
    scale, share = number * mean, number / len(ordered)
    whole_tail = share * scale / (number - 1) if number > 1 else math.inf
    if area <= whole_tail:
        return start + scale * float((area / whole_tail) ** (-1 / (number - 1)) - 1)
    return None  # the floor lies among the measured losses; no kept run has one so low


def rate(row: Row) -> float:
    """Decode rate: by the client's clock where it timed the answer, else the engine's; 0 where there is none."""
    value = row.get("client_tok_per_sec")
    value = row.get("tok_per_sec") if value is None else value
    return float(value) if value and row["n_predicted"] >= 2 else 0.0


def decode_s(row: Row) -> float:
    """Seconds for the tokens after the first."""
    return float((row["n_predicted"] - 1) / rate(row))


def sound(row: Row) -> bool:
    """Whether the counters contradict neither each other nor the tokens."""
    drafted, accepted, rounds = row.get("draft_n") or 0, row.get("draft_n_accepted") or 0, row.get("rounds")
    out, ids, places = row["n_predicted"], row.get("token_ids"), row.get("accepted_by_position")
    return not (
        accepted > drafted
        or (rounds is not None and (rounds > out or rounds > drafted or (rounds == 0 and drafted > 0)))
        or (rounds is not None and places and rounds + accepted > out - 1 + len(places))
        or (places and sum(places) != accepted)
        or (places and any(later > before for before, later in zip([rounds or out, *places], places, strict=False)))
        or (ids is not None and len(ids) != out)
    )


def _makespan(cell: list[Row]) -> float:
    """Seconds from the first request sent to the last answer's end, added up over the cell's processes."""
    processes = {row.get("attempt", 0) for row in cell}
    of_process = [[row for row in cell if row.get("attempt", 0) == process] for process in processes]
    ends = sum(max(row["sent_s"] + row["e2e_s"] for row in rows) for rows in of_process)
    return float(ends - sum(min(row["sent_s"] for row in rows) for rows in of_process))


def _full_window(cell: list[Row], slots: int) -> tuple[float, float]:
    """Seconds and tokens while all slots of a closed loop are full, by adding up each token at its own time."""
    if slots == 1 or len(cell) < slots:
        return 0.0, 0.0
    begin = sorted(row["sent_s"] for row in cell)[slots - 1]
    last_sent = max(row["sent_s"] for row in cell)
    end = min(over for row in cell if (over := row["sent_s"] + row["e2e_s"]) > last_sent)
    tokens = 0.0
    for row in cell:
        first, last = row["sent_s"] + row["ttft_s"], row["sent_s"] + row["e2e_s"]
        inside = max(0.0, min(last, end) - max(first, begin))
        tokens += (begin <= first <= end) + (row["n_predicted"] - 1) * inside / (last - first)
    return end - begin, tokens


def student_ends(middle: float, by_block: list[float], level: float) -> tuple[float, float]:
    """Student's interval of a ratio over blocks, on logarithms."""
    logs = list(map(math.log, by_block))
    return _ends(middle, (statistics.variance(logs) / len(logs), len(logs) - 1), level)


def quantile(values: list[float], share: float) -> float | None:
    """By linear interpolation between the sorted values; `None` where fewer than two lie beyond."""
    if share != 0.5 and len(values) < round(2 / (1 - share)):
        return None
    ranked = sorted(values)
    position = share * (len(ranked) - 1)
    low = math.floor(position)
    return ranked[low] + (position - low) * (ranked[min(low + 1, len(ranked) - 1)] - ranked[low])


def _shared(variance: Variance, peers: list[Variance]) -> Variance:
    """An arm's variance, drawn towards the mean of the others' unless it is plainly larger."""
    if not peers:
        return variance
    weights = sum(freedom for _, freedom in peers)
    mean = sum(value * freedom for value, freedom in peers) / weights
    prior = min(6.0, weights / (1 + (len(peers) - 1) / 4))
    if variance[0] and (not mean or fisher.sf(variance[0] / mean, variance[1], prior) < 0.2):
        return variance
    total = variance[1] + prior
    return (variance[1] * variance[0] + prior * mean) / total, total


def _ends(middle: float, mean: Variance, level: float) -> tuple[float, float]:
    half = float(student.ppf((1 + level) / 2, mean[1])) * math.sqrt(mean[0])
    return middle * math.exp(-half), middle * math.exp(half)


def expected(alpha: float, depth: int) -> float:
    """E(α, k): tokens of a round."""
    return sum(alpha**power for power in range(depth + 1))


def solve(tokens: float, depth: int) -> float:
    """The α with E(α, k) = `tokens`, by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected(middle, depth) < tokens else (low, middle)
    return (low + high) / 2


def _sha(model: Row) -> tuple[str, ...]:
    return tuple(file["sha256"] for file in model.get("files", []))


def _ratio(sums: list[tuple[float, float, float, float]]) -> float | None:
    if not sums:
        return None
    ours, our_s, theirs, their_s = (sum(column) for column in zip(*sums, strict=True))
    return float((ours / our_s) / (theirs / their_s))


def _median(values: list[Any]) -> float | None:
    reported = [value for value in values if value is not None]
    return statistics.median(reported) if reported else None


def _mean(values: list[float]) -> float | None:
    return statistics.mean(values) if values else None
