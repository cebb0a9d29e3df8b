"""Two llama-servers that differ in speculation and in something else, or in nothing else: what is said of them?

    python -m benchmarks.two_endpoints

The baseline's endpoint is a plain llama-server on the bundled target. The arm's drafts, and was started with one more
option, or is wrong inside (`benchmarks.lossy_engines`); its control was started as it is, without speculation. Each is
judged without more, with the control measured beside it, and where `engine.only_speculation_differs` vouches for it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

import benchctl.models
from benchctl.engines.common.process import free_port
from benchctl.engines.openai.adapter import OpenAiSpec
from benchctl.lossless.judge.attribution import CONTROL
from benchctl.recipes.schema import Arm, ModelPair, ModelSpec, PromptsSpec, Recipe, Sampling
from benchctl.recipes.speculation import Speculation
from benchmarks.bundled_runs import measure, numbered_prompts, verified
from benchmarks.keep import RESULTS, command, keep
from benchmarks.lossy_engines.build import build

DIFFERENCES: dict[str, list[str]] = {
    "nothing": [],
    "-ctk q8_0": ["-ctk", "q8_0"],
    "-fa off": ["-fa", "off"],
    "accepts the runner-up within 1 nat": ["--fault", "accept-within=1"],
}
ARM = "spec_d4"
_MODELS = Path(benchctl.models.__file__).parent / "bundled"
_DRAFTS = ["-md", str(_MODELS / "tiny-hybrid-draft.gguf"), "--spec-type", "draft-simple", "--spec-draft-n-max", "4"]
_START_S = 60.0


def main() -> None:
    """Judge every difference, or those that are named, in every way; what was kept of the others stays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--difference", action="append", choices=DIFFERENCES)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=48)
    options = parser.parse_args()
    file = RESULTS / "two_endpoints.json"
    for difference in options.difference or DIFFERENCES:
        with tempfile.TemporaryDirectory(prefix="endpoints-") as folder:
            results = _every_way(DIFFERENCES[difference], Path(folder), options)
        before = json.loads(file.read_text(encoding="utf-8"))["found"] if file.exists() else {}
        keep("two_endpoints", before | {difference: results | {"command": command()}})


def _every_way(args: Sequence[str], scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as servers:
        plain, drafting, control = (
            servers.enter_context(_server(scratch, arguments)) for arguments in ([], [*_DRAFTS, *args], args)
        )
        arms = [Arm(name="baseline"), Arm(name=ARM, url=drafting, speculation=_drafts_of())]
        with_control = [*arms, Arm(name=ARM + CONTROL, url=control)]
        return {
            "alone": _judged(_recipe(arms, plain, scratch, options), scratch),
            "with a control": _judged(_recipe(with_control, plain, scratch, options), scratch),
            "vouched for": _judged(_recipe(arms, plain, scratch, options, vouched=True), scratch),
        }


def _drafts_of() -> Speculation:
    return Speculation(type="draft-simple", max=4)


@contextmanager
def _server(scratch: Path, args: Sequence[str]) -> Iterator[str]:
    """Run a llama-server on the bundled target; the URL that it answers at."""
    port = free_port()
    words = [str(build()), "-m", str(_MODELS / "tiny-hybrid.gguf"), "-c", "2048", "-np", "1", "-t", "1"]
    words += ["--metrics", "--alias", "tiny"]
    with (scratch / f"{port}.log").open("wb") as log:
        server = subprocess.Popen([*words, "--port", str(port), *args], stderr=log, stdout=log)
    try:
        deadline = time.monotonic() + _START_S
        while not _healthy(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((scratch / f"{port}.log").read_text(errors="replace")[-2000:])
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait()


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _recipe(
    arms: Sequence[Arm], url: str, scratch: Path, options: argparse.Namespace, *, vouched: bool = False
) -> Recipe:
    return Recipe(
        name="two-endpoints",
        engine=OpenAiSpec(kind="openai", url=url, context=2048, only_speculation_differs=vouched),
        models=ModelPair(target=ModelSpec(source="served:tiny")),
        prompts=PromptsSpec(suite=str(numbered_prompts(scratch, options.prompts))),
        sampling=Sampling(max_tokens=options.max_tokens),
        blocks=1,
        warmup=0,
        preflight="off",
        arms=list(arms),
    )


def _judged(recipe: Recipe, scratch: Path) -> dict[str, Any]:
    """Measure a recipe and return what verify-lossless says of every arm."""
    code, document = verified(measure(recipe, scratch).folder, "--audit-minutes", "2")
    rows = {
        arm["arm"]: {
            "verdict": arm["verdict"],
            "differ": sum(prompt["outcome"] != "identical" for prompt in arm["comparisons"]),
            "counts": arm["counts"],
            "reason": arm["reason"],
        }
        for arm in document["arms"]
    }
    return {"exit_code": code, "arms": rows}


if __name__ == "__main__":
    main()
