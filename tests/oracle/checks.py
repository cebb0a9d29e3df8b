"""Everything that a report shows of an arm against the second reading; each check returns what disagrees."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.oracle.pages import Page, Shown, agrees, csv_tables, markdown_tables, terminal_tables
from tests.oracle.reading import ALL, Reading, Row, noise_floor

SPEED = (
    "pooled",
    "decode_rate",
    "baseline_rate",
    "median",
    "end_to_end",
    "ttft_ratio",
    "length_matched",
    "by_block",
    "pairs",
    "pairs_unequal",
    "pairs_missing",
)
ACCEPTANCE = ("drafted", "accepted", "rate", "rounds", "acceptance_length", "tokens_per_round", "tokens_per_step",
              "rate_by_request", "rate_by_task", "position_unconditional",
              "position_conditional")  # fmt: skip
THROUGHPUT = ("median", "mean_rate", "pooled_rate", "ttft_median_s", "burst_gap_median_s", "burst_gap_p95_s",
              "tokens_per_burst", "prompt_tok_per_sec_median")  # fmt: skip
COST = ("depth", "alpha", "overhead", "predicted", "break_even_alpha")
ROUND = ("rounds", "seconds", "tokens", "drafted_round_tokens", "step_s")

HEADERS = {  # of a table that has an arm in every row: what the column is, by its header in small letters
    "speed-up": "pooled", "pooled": "pooled", "measured": "pooled", "median pair": "median", "end to end": "end_to_end",
    "ttft ratio": "ttft_ratio", "equal length": "length_matched", "by block": "by_block", "pairs": "pairs",
    "unequal": "pairs_unequal", "missing": "pairs_missing",
    "rate": "rate", "drafted": "drafted", "acceptance length": "acceptance_length",
    "tokens per step": "tokens_per_step", "mean of requests": "rate_by_request", "mean of tasks": "rate_by_task",
    "α measured": "alpha", "break-even α": "break_even_alpha", "overhead of a round": "overhead",
    "speed-up predicted": "predicted", "cost of a round": "cost", "round": "seconds",
    "tok/s": "throughput",
    "decode, median (tok/s)": "median_rate", "decode, mean (tok/s)": "mean_rate", "decode tok/s": "decode_rate",
    "gap, median / p95 (ms)": "gaps_ms", "tokens per burst": "tokens_per_burst",
    "decode_rate": "decode_rate", "baseline_rate": "baseline_rate",
    "prefill, median (tok/s)": "prompt_tok_per_sec_median",
    "ttft, median": "ttft_median_s", "records": "records", "depth k": "depth",
    "memory (gib)": "memory_gib", "memory_bytes": "memory_bytes",
    # The CSV files name columns as analysis.json does.
    "speedup": "pooled", "median": "median", "end_to_end": "end_to_end", "ttft_ratio": "ttft_ratio",
    "length_matched": "length_matched",
    "by_block": "by_block", "pairs_unequal": "pairs_unequal", "pairs_missing": "pairs_missing",
    "lowest_block": "lowest_block", "highest_block": "highest_block", "accepted": "accepted",
    "acceptance_length": "acceptance_length", "tokens_per_round": "tokens_per_round",
    "tokens_per_step": "tokens_per_step", "rate_by_request": "rate_by_request", "rate_by_task": "rate_by_task",
    "position_unconditional": "position_unconditional", "position_conditional": "position_conditional",
    "depth": "depth", "alpha": "alpha", "overhead": "overhead",
    "predicted": "predicted", "break_even_alpha": "break_even_alpha", "round_s": "seconds", "baseline_s": "baseline_s",
    "drafted_round_tokens": "drafted_round_tokens", "tokens": "tokens", "tok_per_s": "throughput",
    "tok_per_sec_median": "median_rate", "mean_rate": "mean_rate", "ttft_median_s": "ttft_median_s",
    "prompt_tok_per_sec_median": "prompt_tok_per_sec_median", "burst_gap_median_s": "burst_gap_median_s",
    "burst_gap_p95_s": "burst_gap_p95_s", "tokens_per_burst": "tokens_per_burst",
}  # fmt: skip


OTHER_INTERVALS = ("ttft ratio, 95 %", "95 %")
"""Columns with intervals of something else than an arm's speed-up."""
OTHER_FILES = ("conditions", "breakeven", "forecasts", "resources", "unit-costs", "throughput.csv", "answer-length")
CUT_ANSWERS = "length of the answer"
"""In the title of the table whose answers are cut: its numbers are not the arm's."""


SHAPES = {"token by token": "decode", "as verified": "verify", "all at once": "prefill"}
REFUSALS = (
    "every arm here pays more for its rounds",
    "not shown that speculation is the cause",
    "Run the target alone until it is decided",
)


class Report:
    """A rendered run beside its second reading."""

    def __init__(self, reading: Reading, folder: Path, terminal: str = "") -> None:
        self.reading, self.folder, self.terminal = reading, folder, terminal
        self.analysis: Row = json.loads((folder / "analysis.json").read_text())
        self.markdown = (folder / "report.md").read_text(encoding="utf-8")
        self.page = Page((folder / "index.html").read_text(encoding="utf-8"))
        tables = [*markdown_tables(self.markdown), *self.page.tables, *terminal_tables(terminal)]
        self.shown = tables
        self.csv = csv_tables(folder)
        self.looked_at: dict[str, set[str]] = defaultdict(set)
        """The quantities that were compared, and of which arms."""

    def value(self, name: str, arm: str, task: str) -> Any:
        """The second reading of a quantity."""
        setting = self.reading.arms[arm]
        if name == "memory_bytes":
            return setting.memory_bytes
        if name == "memory_gib":
            return None if setting.memory_bytes is None else setting.memory_bytes / 2**30
        if name == "throughput":
            return self.reading.load(arm)["throughput"]
        if name == "gaps_ms":
            gaps = self.reading.throughput(arm, task)
            return [1000 * gap for gap in (gaps["burst_gap_median_s"], gaps["burst_gap_p95_s"]) if gap is not None]
        if name.startswith("position ") and name[9:].isdigit():
            return self.reading.acceptance(arm, task)["position_unconditional"][int(name[9:]) - 1]
        if name in {*THROUGHPUT, "median_rate", "records"} - {"median"}:
            return self.reading.throughput(arm, task).get({"median_rate": "median"}.get(name, name))
        if name == "decode_rate":  # of the pairs that the speed-up is of
            paired = arm != setting.baseline and setting.one_at_a_time
            return self.reading.speed(arm, task)[name] if paired else self.reading.throughput(arm, task)["pooled_rate"]
        if name == "headline":  # of requests that share the engine it is that of whole answers
            return self._headline(arm) if arm != setting.baseline else None
        if name in SPEED or name in {"lowest_block", "highest_block", "baseline_rate"}:
            return self.reading.speed(arm, task)[name] if arm != setting.baseline else None
        if name in {*COST, *ROUND, "cost", "baseline_s"} and name != "rounds":
            return self.reading.round(arm, task).get(name)
        return self.reading.acceptance(arm, task).get(name)

    # analysis.json

    def check_json(self) -> Iterator[str]:
        """Every row of analysis.json."""
        for name, row in self.analysis.get("compared", {}).items():
            arm = self.reading.arms[name]
            sources = {key: (row[key] or {}).get("source") for key in ("target", "draft")}
            for key, shown in {
                **sources,
                "baseline": row["baseline"],
                "again": row["again"],
                "engine": row["engine"],
            }.items():
                wanted = {"again": arm.second}.get(key, getattr(arm, key, None))
                self.looked_at["compared"].add(name)
                if shown != wanted:
                    yield f"analysis.json, compared, {name}: {key} {shown}, its own is {wanted}"
        for row in [*self.analysis["speedups"], *self.analysis.get("second_cells", [])]:
            yield from self._row("speedups", row, self.reading.speed(row["arm"], row["task"]), SPEED)
        for row in self.analysis["acceptance"]:
            yield from self._row("acceptance", row, self.reading.acceptance(row["arm"], row["task"]), ACCEPTANCE)
        for row in self.analysis["throughput"]:
            wanted = self.reading.throughput(row["arm"], row["task"])
            yield from self._row("throughput", row, wanted, THROUGHPUT)
            rates = sorted(wanted["rates"])
            if row["task"] != ALL:
                listed = {**row, "tok_per_sec": sorted(row["tok_per_sec"])}
                yield from self._row("throughput", listed, {"tok_per_sec": rates}, ("tok_per_sec",))
                lines = [line for table in self.csv if table.where == "throughput.csv" for line in table.dicts()]
                csv_rates = [float(line["tok_per_sec"]) for line in lines
                           if (line["arm"], line["task"]) == (row["arm"], row["task"])]  # fmt: skip
                if not same(sorted(csv_rates), rates):
                    yield f"throughput.csv, {row['arm']}, {row['task']}: other rates than the records'"
        for row in self.analysis["costs"]:
            wanted = self.reading.round(row["arm"])
            yield from self._row("costs", row, wanted, COST)
            yield from self._row("costs", row, {"measured": self.reading.pooled(row["arm"])}, ("measured",))
        for row in self.analysis["rounds"]["splits"]:
            yield from self._row("rounds", row, self.reading.round(row["arm"], row["task"]), ROUND)
        for row in self.analysis["rounds"]["units"]:
            expected = self.reading.round(row["arm"])
            if "step_s" in expected and row["steps"] and not same(row["steps"], row["seconds"] / expected["step_s"]):
                yield f"rounds.units, {row['arm']}, {row['what']}: {row['steps']} steps of another baseline"
        for row in self.analysis["verdicts"]:
            overlapping = not self.reading.arms[row["arm"]].one_at_a_time
            speed = self.reading.speed(row["arm"])["end_to_end" if overlapping else "pooled"]
            if row["speedup"] is not None and not same(row["speedup"], speed):
                yield f"verdicts, {row['arm']}: speedup {row['speedup']}, its own is {speed}"
            rate = self.reading.acceptance(row["arm"]).get("rate")
            if not same(row["acceptance"], rate):
                yield f"verdicts, {row['arm']}: acceptance {row['acceptance']}, its own is {rate}"
        for row in self.analysis["losslessness"]:
            if row["scope"] is not None:
                expected = self.reading.scope(row["arm"])
                yield from self._row("losslessness", {"arm": row["arm"], **row["scope"]}, expected, tuple(expected))
                if row["verdict"] == "identical" and not same(
                    row["differing_limit"], 1 - 0.05 ** (1 / expected["prompts"])
                ):
                    yield f"losslessness, {row['arm']}: the limit {row['differing_limit']}"
        for row in (self.analysis.get("sweep") or {}).get("levels", []):
            wanted = self.reading.load(row["arm"])
            yield from self._row("levels", row, wanted, tuple(wanted))

    def _row(self, where: str, row: Row, wanted: Row, names: tuple[str, ...]) -> Iterator[str]:
        for name in names:
            if name in row and row[name] is not None:
                self.looked_at[name].add(row["arm"])
                if not same(row[name], wanted.get(name)):
                    position = f"analysis.json, {where}, {row['arm']}, {row.get('task', ALL)}, {name}"
                    yield f"{position}: {row[name]}, its own is {wanted.get(name)}"

    # Tables

    def check_tables(self) -> Iterator[str]:
        """Every cell of every table whose header is known and whose row is an arm's, at the precision shown."""
        for table in [*self.shown, *self.csv]:
            for row in table.dicts():
                arm = self.arm_of(row)
                if arm is None:
                    continue
                task = row.get("task", ALL)
                if task != ALL and task not in self.reading.tasks:
                    continue
                for header, text in row.items():
                    name = self._quantity(table, header, row)
                    if name is None or "over 100" in text or not re.search(r"\d", text):
                        continue
                    value = self.value(name, arm, task)
                    if value is ...:
                        continue
                    self.looked_at[name].add(arm)
                    if not shows(text, value):
                        yield f"{table.where}, {arm}, {task}, {header!r}: {text}, its own {name} is {value}"

    def _quantity(self, table: Shown, header: str, row: dict[str, str]) -> str | None:
        if table.where.startswith(OTHER_FILES) or CUT_ANSWERS in table.where:
            return None
        if "redicted and measured" in table.where:  # a forecast's tokens and speed-up are not the arm's own
            return {"measured": "pooled"}.get(header)
        text = row[header]
        in_terminal = table.where == "terminal"
        if header == "speed-up" and ("decode tok/s" in row or in_terminal):
            return "headline"
        if header == "tok/s" and in_terminal and "speed-up" in row:  # elsewhere of all requests
            return "decode_rate"
        if table.where.endswith("Acceptance by position") and header.isdigit():
            return f"position {header}"
        if header == "accepted":  # a share in one table, a count in another
            return "rate" if "%" in text else "accepted"
        if header in {"rounds", "tokens per round", "with plain steps", "baseline"} and "round" in row:
            return {"tokens per round": "drafted_round_tokens", "with plain steps": "tokens", "rounds": None,
                    "baseline": "baseline_s"}[header]  # fmt: skip
        if header == "tokens per round":  # one name, one meaning: those of the drafted rounds that were priced
            return "drafted_round_tokens"
        if header == "with plain steps":
            return "tokens_per_round"
        if header == "rounds" and "tokens_per_step" not in row and table.where == "rounds.csv":
            return None
        if table.where == "replays.csv" and header in {"rounds", "tokens"}:  # of distinct answers, not of the arm
            return None
        return {"rounds": "rounds"}.get(header) or HEADERS.get(header)

    def arm_of(self, row: dict[str, str]) -> str | None:
        """The arm that a row is about: by its name, or by the recipe's arm and the values of the axes."""
        name = row.get("arm") or ""
        name = re.sub(r" \(.*\)$", "", name)
        axes = {key for arm in self.reading.arms.values() for key in arm.axes}
        wanted = {axis: row.get(axis) for axis in axes if axis in row}
        if wanted and "arm" in row and name not in self.reading.arms:
            matches = [
                arm.name
                for arm in self.reading.arms.values()
                if arm.setting_name == name
                and all(value in {arm.axes.get(axis), "–"} for axis, value in wanted.items())
                and (len(wanted) == 1 or arm.draft or wanted.get("models.draft") in {"–", None})
            ]
            return matches[0] if len(matches) == 1 else None
        return name if name in self.reading.arms else None

    # Answers, margins and noise

    def check_answers(self) -> Iterator[str]:
        """Every answer shown beside a baseline's, and every claim that two answers are alike."""
        for prompt in self.page.prompts:
            task, _, index = prompt.names[0].rpartition("/")
            key = (task, int(index))
            for side in prompt.forks:
                baseline = self.reading.arms[side.arm].baseline
                where = f"index.html, {side.arm}, {prompt.names[0]}"
                if len(self.baselines) > 1 and side.titles[0].split(" · ")[0].strip() != baseline:
                    yield f"{where}: stands beside {side.titles[0]}, its own baseline is {baseline}"
                for arm, text in zip((baseline, side.arm), side.texts, strict=True):
                    self.looked_at["answer"].add(arm)
                    shown = _normal(text.replace("(it ended here)", ""))
                    if not any(shown in _normal(answer) for answer in self.reading.texts(arm, *key)):
                        yield f"{where}: the text shown for {arm} is not its answer"
                yield from self._probabilities(side.arm, key, side.tables, where)
                fragments = any("whole answers are not saved" in " ".join(note.split()) for note in prompt.notes)
                if fragments and self.reading.texts(baseline, *key):
                    yield f"{where}: 'not saved', but both records are there"
            for note in prompt.notes:
                result = re.match(r"Identical to (\S+): (.*)\.$", note, re.DOTALL)
                for arm in (name.split()[0] for name in result[2].split(", ")) if result else ():
                    if arm not in self.reading.arms:
                        continue
                    self.looked_at["identical"].add(arm)
                    baseline = self.reading.arms[arm].baseline
                    shown_texts = {_normal(text) for text in [*prompt.texts[1:], *(f.texts[0] for f in prompt.forks)]}
                    texts = {_normal(text) for text in self.reading.texts(arm, *key)}
                    if result and baseline != result[1] and len(self.baselines) > 1:
                        yield f"index.html, {prompt.names[0]}: {arm} 'identical to {result[1]}' and not {baseline}"
                    if shown_texts and not shown_texts & texts:
                        yield f"index.html, {prompt.names[0]}: {arm} is called identical to a text that it is not"

    @property
    def texts(self) -> dict[str, str]:
        """What a reader sees, by where."""
        return {"report.md": self.markdown, "index.html": self.page.visible, "terminal": self.terminal}

    @property
    def baselines(self) -> set[str]:
        """The baselines of the run."""
        return {arm.baseline for arm in self.reading.arms.values()}

    def _probabilities(self, arm: str, prompt: tuple[str, int], tables: list[Shown], where: str) -> Iterator[str]:
        fork = self._fork(arm, *prompt)
        if fork is None or fork["baseline_token"] is None:
            return
        readings = self.reading.readings(arm, *prompt, fork)
        if readings and not tables:
            yield f"{where}: no probabilities, but its target scored them"
        for table in tables:
            if len({row[0] for row in table.rows}) < len(table.rows):
                yield f"{where}: the same probabilities several times"
            for row in table.rows:
                width = re.match(r"(\d+) tokens", row[0])
                shape = f"verify {width[1]}" if width else "decode 1" if row[0] == "token by token" else "prefill"
                reading = next(
                    (shape_reading for name, shape_reading in readings.items() if name.startswith(shape)), None
                )
                if reading is None:
                    yield f"{where}: probabilities of another target"
                    continue
                self.looked_at["probability"].add(arm)
                for text, value in zip(row[1:3], (reading["token"], reading["rival"]), strict=True):
                    if value is not None and not agrees(text, 2.718281828459045**value):
                        yield f"{where}: probability {text}, its own is {2.718281828459045**value}"

    def _fork(self, arm: str, task: str, index: int) -> Row | None:
        for row in self.analysis["losslessness"]:
            for comparison in row["comparisons"] if row["arm"] == arm else []:
                if (comparison["task"], comparison["prompt_idx"]) == (task, index):
                    return comparison["fork"]  # type: ignore[no-any-return]
        return None

    def check_lossless(self) -> Iterator[str]:
        """Whether answers are alike, where they diverge, by what margin, and against which noise."""
        for row in self.analysis["losslessness"]:
            arm = row["arm"]
            for answer in row["comparisons"]:
                where = f"analysis.json, {arm}, {answer['task']}/{answer['prompt_idx']}"
                alike = self.reading.same_answer(arm, answer["task"], answer["prompt_idx"])
                self.looked_at["comparison"].add(arm)
                decided = answer["outcome"] not in {"undetermined", "degenerate"}
                if decided and (answer["outcome"] == "identical") != all(alike):
                    yield f"{where}: {answer['outcome']}, but by its own baseline {alike}"
                if answer["blocks_compared"] != len(alike):
                    yield f"{where}: {answer['blocks_compared']} blocks compared, of its own baseline {len(alike)}"
                if answer["blocks_differing"] != alike.count(False):
                    yield f"{where}: {answer['blocks_differing']} blocks differ, by its own baseline {alike}"
                if answer["fork"]:
                    yield from self._margins(arm, answer, where)
            if row["counts"] != Counter(comparison["outcome"] for comparison in row["comparisons"]):
                yield f"analysis.json, {arm}: {row['counts']} are not the outcomes of its comparisons"
            for noise in row["noise"]:
                yield from self._noise(arm, noise)
        yield from self._noise_tables()
        yield from self._fork_tables()

    def _margins(self, arm: str, comparison: Row, where: str) -> Iterator[str]:
        fork = comparison["fork"]
        if fork["unit"] == "token":
            pairs = self.reading.pairs(arm, comparison["task"], timed=False)
            ids = [
                [side["token_ids"] or [] for side in pair]
                for pair in pairs
                if pair[0]["prompt_idx"] == comparison["prompt_idx"]
            ]
            long_enough = [pair for pair in ids if min(map(len, pair)) > fork["index"]]
            tokens_there = {
                (ours[fork["index"]], theirs[fork["index"]])
                for ours, theirs in long_enough
                if ours[: fork["index"]] == theirs[: fork["index"]]
            }
            if long_enough and (fork["arm_token"], fork["baseline_token"]) not in tokens_there:
                yield f"{where}: diverges by {fork['baseline_token']}, {fork['arm_token']}, not {tokens_there}"
        readings = self.reading.readings(arm, comparison["task"], comparison["prompt_idx"], fork)
        for shape in fork["shapes"]:
            reading = readings.get(f"{shape['shape']} {shape['width']}")
            if reading is None or reading["token"] is None or reading["rival"] is None:
                continue
            self.looked_at["margin"].add(arm)
            margin = reading["token"] - reading["rival"]
            if not same(shape["margin"], margin):
                yield f"{where}: margin {shape['margin']} ({shape['shape']}), its own is {margin}"
        if fork["shapes"] and not readings:
            yield f"{where}: has margins, but its own target did not score it"

    def _noise(self, arm: str, noise: Row) -> Iterator[str]:
        part = self.reading.arms[arm].part
        if noise["by_prefill"] or self.reading.scores(part) is None:
            return
        losses = self.reading.losses(part, noise["width"])
        floor = noise_floor(losses, self.reading.tokens_of(part))
        where = f"analysis.json, noise of {arm} at width {noise['width']}"
        self.looked_at["noise"].add(arm)
        if noise["prefixes"] != len(losses):
            yield f"{where}: {noise['prefixes']} prefixes, of its own target {len(losses)}"
        elif (floor is None) != (noise["floor"] is None) or (floor and abs(noise["floor"] / floor - 1) > 0.02):
            yield f"{where}: floor {noise['floor']}, of its own target {floor}"

    def floors(self, width: int) -> dict[str | None, float | None]:
        """The noise floor at a width, of every target that was scored."""
        floors = {}
        for row in self.analysis["losslessness"]:
            for noise in row["noise"]:
                if noise["width"] == width:
                    floors[self.reading.arms[row["arm"]].part] = noise["floor"]
        return floors

    def _noise_tables(self) -> Iterator[str]:
        """A table of noise floors has a row for each target and width, and says which target."""
        for table in self.shown:
            if "noise floor" not in [header.lower() for header in table.headers]:
                continue
            rows: dict[str, list[dict[str, str]]] = defaultdict(list)
            for row in table.dicts():
                rows[row["tokens at once"]].append(row)
            for width, of_width in rows.items():
                floors = self.floors(int(width))
                if len(of_width) < len(floors):
                    yield f"{table.where}: {len(of_width)} noise floors of width {width} for targets {list(floors)}"
                shown = {row["noise floor"] for row in of_width}
                for part, floor in floors.items():
                    if not any(agrees(text, floor) for text in shown):
                        yield f"{table.where}: no noise floor of {part} at width {width} ({floor})"
                for row in of_width:
                    named = [part for part in floors if part and any(part in text for text in row.values())]
                    self.looked_at["noise table"].update(map(str, named))
                    if named and not agrees(row["noise floor"], floors[max(named, key=len)]):
                        yield f"{table.where}: {row['noise floor']} at width {width}, of {named} it is {floors}"
                    if len(floors) > 1 and not named:
                        yield f"{table.where}: a noise floor of width {width} without its target"

    def _fork_tables(self) -> Iterator[str]:
        for table in self.shown:
            if "token by token" not in [header.lower() for header in table.headers]:
                continue
            for row in table.dicts():
                arm = self.arm_of(row)
                if arm is None or "/" not in row["prompt"]:
                    continue
                task, _, index = row["prompt"].rpartition("/")
                fork = self._fork(arm, task, int(index)) or {}
                for header, shape in SHAPES.items():
                    margin = next(
                        (reading["margin"] for reading in fork.get("shapes", []) if reading["shape"] == shape), None
                    )
                    if row[header] not in {"–", ""} and not agrees(row[header], margin):
                        yield f"{table.where}, {arm}, {row['prompt']}, {header!r}: {row[header]}, its own is {margin}"
                floor = fork.get("noise_floor")
                if row["noise"] not in {"–", ""} and not agrees(row["noise"], floor):
                    yield f"{table.where}, {arm}, {row['prompt']}: noise {row['noise']}, its own is {floor}"

    # Sentences

    def check_sentences(self) -> Iterator[str]:
        """What sentences say of an arm: its speed-up, its acceptance, what its rounds cost and yield."""
        for where, text in self.texts.items():
            for arm, sentence in self._said(text):
                yield from self._sentence(where, arm, sentence)
            names = sorted(self.reading.speculating, key=len, reverse=True)
            pattern = rf"(?<![\w.-])`?({'|'.join(map(re.escape, names))})`?(?: \(|, | ran | is |: )(\d+\.\d\d)×"
            for arm, number in re.findall(pattern, text) if names else []:
                self.looked_at["sentence"].add(arm)
                if not shows(number, self._headline(arm)):
                    yield f"{where}: {arm} {number}×, its own is {self._headline(arm)}"

    def _headline(self, arm: str) -> float | None:
        speed = self.reading.speed(arm)
        value: float | None = speed["pooled" if self.reading.arms[arm].one_at_a_time else "end_to_end"]
        return value

    def _said(self, text: str) -> Iterator[tuple[str, str]]:
        for line in text.splitlines():
            result = re.match(r"(?:- )?`?([\w.-]+)`?: (.*)", line.strip())
            if result and result[1] in self.reading.arms and result[1] in self.reading.speculating:
                yield result[1], result[2]

    def _sentence(self, where: str, arm: str, sentence: str) -> Iterator[str]:
        rounds, accepted = self.reading.round(arm), self.reading.acceptance(arm)
        for pattern, value in (
            (r"(\d+\.\d\d)× the baseline", self._headline(arm)),
            (r"(\d+(?:\.\d+)? %) of (?:(?:its|the) )?draft(?:ed)? tokens", accepted.get("rate")),
            (r"a round takes as long as (\d+\.\d+) tokens", rounds.get("cost")),
            (r"without speculation and yields (\d+\.\d+)", accepted.get("acceptance_length")),
        ):
            for number in re.findall(pattern, sentence):
                self.looked_at["sentence"].add(arm)
                if not shows(number, value):
                    yield f"{where}: {arm}: {sentence[:60]}…: {number}, its own is {value}"

    def check_intervals(self) -> Iterator[str]:
        """An arm's speed-up has one interval, that of all claims together, wherever it is shown."""
        rows = [*self.analysis["speedups"], *self.analysis.get("second_cells", [])]
        ends = {(row["arm"], row["task"]): row["interval"] for row in rows}
        for row in rows:
            inner, outer = row.get("pointwise"), row["interval"]
            if (inner is None) != (outer is None) or (
                inner and not outer["low"] <= inner["low"] <= inner["high"] <= outer["high"]
            ):
                yield f"analysis.json, {row['arm']}, {row['task']}: {outer} is no wider than {inner}"
            if row["arm"] in self.reading.speculating and self.reading.arms[row["arm"]].one_at_a_time:
                yield from self._second_intervals(row)
        verdicts = {row["arm"]: row for row in self.analysis["verdicts"]}
        for arm, row in verdicts.items():
            if self.reading.arms[arm].one_at_a_time and row["interval"] != ends[arm, ALL] and row["speed"] != "unknown":
                yield f"analysis.json, verdict on {arm}: {row['interval']}, the speed-up's is {ends[arm, ALL]}"
            if row["speed"] in {"faster", "slower", "undecided"}:
                low, high = row["interval"]["low"], row["interval"]["high"]
                if row["speed"] != ("faster" if low > 1 else "slower" if high < 1 else "undecided"):
                    yield f"analysis.json, verdict on {arm}: {row['speed']} beside {low:.3f} to {high:.3f}"
            ends[arm, ALL] = row["interval"] or ends[arm, ALL]  # of requests that share the engine: of whole answers
        for table in [*self.shown, *self.csv]:
            for row in table.dicts() if not table.where.startswith(OTHER_FILES) else []:
                arm, task = self.arm_of(row), row.get("task", ALL)
                if arm is None or (arm, task) not in ends:
                    continue
                for header, text in row.items():
                    shown = re.findall(r"^([\d.]+) to ([\d.]+)×$", text)
                    of_others = "redicted" in table.where or CUT_ANSWERS in table.where
                    if shown and header not in OTHER_INTERVALS and not of_others:
                        yield from self._interval(f"{table.where}, {header!r}", arm, shown[0], ends[arm, task])
                if table.where == "speedup.csv" and row["interval_low"]:
                    stored = row["interval_low"], row["interval_high"]
                    yield from self._interval(table.where, arm, stored, ends[arm, task])
                    if extra := [name for name in row if re.search("simultaneous|like_these|pointwise", name)]:
                        yield f"{table.where}: a second interval, {', '.join(extra)}"
        for row in [*self.page.data["speedups"], *({**row, "task": ALL} for row in self.page.data["payoff"])]:
            stored_ends = ends[row["arm"], row["task"]] if self.reading.arms[row["arm"]].one_at_a_time else None
            if stored_ends and row["low"] is not None:
                yield from self._interval(
                    "plot of index.html", row["arm"], (str(row["low"]), str(row["high"])), stored_ends
                )
        for where, text in self.texts.items():
            for arm, sentence in self._said(text):
                for shown in re.findall(r"× the baseline[^.]* \((?:95 % interval )?(\d.\d\d) to (\d.\d\d)", sentence):
                    yield from self._interval(f"{where}, sentence", arm, shown, ends[arm, ALL])

    def _second_intervals(self, row: Row) -> Iterator[str]:
        """The three intervals of a row of analysis.json, computed again."""
        if row["interval"] is None:
            return
        wanted = self.reading.intervals(row["arm"], row["task"])
        for name in ("pointwise", "interval", "like_these"):
            ends, second = row[name], wanted.get(name)
            self.looked_at[name].add(row["arm"])
            if not same(ends and [ends["low"], ends["high"]], None if second is None else list(second)):
                yield f"analysis.json, {row['arm']}, {row['task']}: {name} {ends}, its own is {second}"

    def _interval(self, where: str, arm: str, shown: tuple[str, str], stored: Row | None) -> Iterator[str]:
        self.looked_at["interval"].add(arm)
        rounded = len(shown[0]) < 12  # the plot's numbers have six digits
        ends = (
            [float(f"{stored[end]:.6g}") if rounded else stored[end] for end in ("low", "high")]
            if stored
            else [None, None]
        )
        if not all(map(agrees, shown, ends)):
            yield f"{where}: {arm} {' to '.join(shown)}, its one interval is {stored}"

    def check_warnings(self) -> Iterator[str]:
        """One list of warnings, with one count."""
        kinds = len({(row["id"], row["why"], row["todo"], row["seen"] * (row["id"] == "noted"))
                     for row in self.analysis["warnings"]})  # fmt: skip
        observations = [row["seen"] for row in self.analysis["warnings"]]
        for note in self.reading.manifest.get("warnings", []):
            if note not in observations:
                yield f"analysis.json lacks a warning of the run: {note[:60]}"
        for where, pattern in (("terminal", r"(\d+) warnings? \(see"), ("index.html", r"Warnings \((\d+)\)")):
            for number in re.findall(pattern, self.texts[where]):
                self.looked_at["warnings"].add(where)
                if int(number) != kinds:
                    yield f"{where}: {number} warnings, analysis.json has {kinds} kinds"
        listed = re.search(r"\n## Warnings\n+((?:- .*\n)+)", self.markdown)
        if (listed[1].count("\n") if listed else 0) != kinds:
            yield f"report.md lists {listed[1].count(chr(10)) if listed else 0} warnings of {kinds} kinds"

    def check_rates(self) -> Iterator[str]:
        """Of the rates beside a speed-up the quotient is the speed-up; the baseline's are those of the same answers."""
        for table in self.shown:
            brief = table.where == "terminal" and {"tok/s", "Speed-up"} <= {*table.headers}
            header = "tok/s" if brief else "decode tok/s"
            rates = {self.arm_of(row): row.get(header, "") for row in table.dicts()}
            for row in table.dicts():
                arm = self.arm_of(row)
                shown, text = re.match(r"[\d.]+$", rates[arm]), re.match(r"([\d.]+)×", row.get("speed-up", ""))
                if arm is None or not shown or not text or not self.reading.arms[arm].one_at_a_time:
                    continue
                baseline = self.reading.arms[arm].baseline
                note = next((text for where, text in self.texts.items() if table.where.startswith(where)), "")
                note = " ".join(note.split())
                names = re.compile(rf"(?<![\w.-]){re.escape(arm)}(?![\w-])")
                noted = [
                    match[1]
                    for match in re.finditer(r" the baseline made ([\d.]+) tok/s", note)
                    if names.search(note[: match.start()].rpartition(". ")[2])
                ]
                alone = re.match(r"[\d.]+$", row.get("alone", ""))  # the baseline's rate in the same answers
                base = alone[0] if alone else (noted or [rates.get(baseline, "")])[0]
                self.looked_at["quotient"].add(arm)
                if not _quotient(shown[0], base, text[1]):
                    yield f"{table.where}: {arm}: {shown[0]} / {base} tok/s stands beside {text[1]}×"

    def check_directions(self) -> Iterator[str]:
        """Where most prompts gain and their sum loses, or the other way round, a sentence says so."""
        for arm in self.reading.speculating:
            speed = self.reading.speed(arm)
            pooled, median = (round(speed[name] or 1.0, 2) for name in ("pooled", "median"))
            idle = self.reading.acceptance(arm).get("drafted") == 0  # a difference is noise, another sentence says so
            if (pooled - 1) * (median - 1) < 0 and self.reading.arms[arm].one_at_a_time and not idle:
                for where, text in self.texts.items():
                    self.looked_at["direction"].add(arm)
                    if where == "terminal":
                        continue  # it shows no median
                    if text and f"{arm}: the median prompt" not in " ".join(text.split()).replace("`", ""):
                        yield f"{where}: {arm} {pooled}× beside a median of {median}×, without a word"

    def check_answer_lengths(self) -> Iterator[str]:
        """An answer that is cut at a token took the time until the burst that brought it."""
        by_arm: dict[str, list[Row]] = defaultdict(list)
        for row in self.analysis.get("answer_lengths", []):
            by_arm[row["arm"]].append(row)
        for arm, rows in by_arm.items():
            timed = [(came(ours), came(theirs, alone=True)) for ours, theirs in self.reading.pairs(arm)]
            longest = rows[-1]["tokens"]
            kept = [(ours, theirs) for ours, theirs in timed if min(len(ours), len(theirs)) >= longest]
            for row in rows:
                last = row["tokens"] - 1
                ratio = sum(theirs[last] for _, theirs in kept) / sum(ours[last] for ours, _ in kept)
                self.looked_at["answer length"].add(arm)
                if row["pairs"] != len(kept) or not same(row["speedup"], ratio):
                    yield f"analysis.json, {arm} cut at {row['tokens']}: {row['speedup']}, its own is {ratio}"

    def check_weights(self) -> Iterator[str]:
        """A name of a type stands beside the bits per weight that it has; and a rate has one definition."""
        for where, text in self.texts.items():
            for name, bits in re.findall(r"\b(f32|b?f16|q8_0), ([\d.]+) bits per weight", text):
                if not 0.8 < float(bits) / {"f32": 32, "q8_0": 8.5}.get(name, 16) < 1.25:
                    yield f"{where}: {name}, {bits} bits per weight"
            for arm, sentence in self._said(text):
                if "α" in sentence:
                    yield f"{where}: {arm}: α is not defined beside the accepted share: {sentence[-80:]}"

    def check_one_value(self) -> Iterator[str]:
        """The same quantity of the same arm has one value: what one place rounds up, another does not round down."""
        values_of: dict[tuple[str, str], set[str]] = defaultdict(set)
        for text in self.texts.values():
            for arm, sentence in self._said(text):
                values_of["detectable change", arm].update(re.findall(r"change of (\d+) %", sentence))
                values_of["acceptance", arm].update(re.findall(r"(\d+) % of (?:its|the) draft", sentence))
        for table in self.shown:
            for row in table.dicts():
                name = self.arm_of(row)
                if name and row.get("task", ALL) == ALL:
                    values_of["detectable change", name].update(re.findall(r"detects (\d+) %", " ".join(row.values())))
                    values_of["detectable change", name].update(re.findall(r"^(\d+) %", row.get("detects", "")))
        for (kind, arm), values in values_of.items():
            if len(values) > 1:
                yield f"{arm}: {kind} is {' %, '.join(sorted(values))} % on one page"

    # What to run

    def check_decision(self) -> Iterator[str]:
        """An arm that pays is not called useless elsewhere, and no number stands beside 'no speed-up is reported'."""
        for table in self.shown:
            for row in table.dicts():
                arm = self.arm_of(row)
                if arm and row.get("speed-up") == "inactive":
                    for where, text in self.texts.items():
                        sentences = [
                            sentence
                            for name, sentence in self._said(text)
                            if name == arm and "× the baseline" in sentence
                        ]
                        if sentences or re.search(rf"(?<![\w.-])`?{re.escape(arm)}`?(?: \(|, )\d+\.\d\d×", text):
                            yield f"{where}: {arm} is inactive, and a speed-up is told of it"
        if not self.terminal:
            return
        for where, text in self.texts.items():
            flat = " ".join(text.split())
            for refusal in REFUSALS:
                if "as fast as without speculation" in flat and refusal in flat and len(self.baselines) == 1:
                    yield f"{where}: 'as fast as without speculation' and '{refusal}'"
        runs = {where: set(re.findall(r"Use ([\w.-]+) \(", text)) for where, text in self.texts.items()}
        if len({frozenset(arms) for arms in runs.values() if arms}) > 1:
            yield f"what to run: {runs}"

    def complaints(self) -> list[str]:
        """Everything that disagrees."""
        return [
            f"[{check.__name__.removeprefix('check_')}] {complaint}"
            for check in (self.check_json, self.check_tables, self.check_answers, self.check_lossless,
                          self.check_sentences, self.check_one_value, self.check_decision,
                          self.check_intervals, self.check_warnings, self.check_rates, self.check_directions,
                          self.check_weights, self.check_answer_lengths)
            for complaint in check()
        ]  # fmt: skip


def came(row: Row, *, alone: bool = False) -> list[float]:
    """When each token of an answer came, in seconds after the first; empty where that is not known."""
    gaps, steps, tokens = row.get("burst_gaps_s") or [], row.get("target_steps"), row["n_predicted"]
    brought = [1] * (tokens - 1) if steps is None else [step[-1] + 1 for step in steps]
    if gaps and len(brought) - len(gaps) in (0, 1):
        times, clock = [0.0], 0.0
        for gap, count in zip(gaps, brought, strict=False):
            clock += gap
            times += [clock] * count
        return times
    return [row["decode_s"] * token / (tokens - 1) for token in range(tokens)] if alone and tokens > 1 else []


def shows(text: str, value: Any) -> bool:
    """Whether a cell shows `value`: a number, or the values of all blocks."""
    if isinstance(value, list):
        if text.startswith("["):
            return same(json.loads(text), value)
        numbers = re.findall(r"\d+(?:\.\d+)?", text)
        return len(numbers) == len(value) and all(map(agrees, numbers, value))
    return agrees(text, value)


def _quotient(rate: str, base: str, ratio: str) -> bool:
    """Whether rate / base can be the ratio, all three as they are rounded."""
    if not base:
        return False
    ends = [(float(text) - half, float(text) + half) for text in (rate, base, ratio)
            for half in [0.5000001 * 10.0 ** -len(text.partition(".")[2])]]  # fmt: skip
    return ends[0][0] / ends[1][1] <= ends[2][1] and ends[0][1] / ends[1][0] >= ends[2][0]


def same(value: Any, wanted: Any) -> bool:
    """Whether two values are equal but for the last digits."""
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(same, value, wanted))
    if value is None or wanted is None:
        return value is wanted
    return bool(abs(value - wanted) <= 1e-6 * max(abs(wanted), 1e-9))


def _normal(text: str) -> str:
    return " ".join(text.split())
