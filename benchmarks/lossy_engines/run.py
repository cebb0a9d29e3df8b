"""Measure one run that holds the baseline, sound arms and arms whose engine is wrong inside.

    python -m benchmarks.lossy_engines.run RESULTS                                  # the bundled pair at q4_0
    python -m benchmarks.lossy_engines.run RESULTS --target T.gguf --draft D.gguf   # another one, as its files are

Every arm is one patched llama-server (`benchmarks.lossy_engines.build`) with another `--fault`, so that nothing else
differs between a sound arm and a wrong one. What comes out is an ordinary run of benchctl, for
`benchctl verify-lossless` and for `python -m benchmarks.validity --section f`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from benchctl.measurement.prepare import prepare
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.run import start_run
from benchctl.recipes.schema import Arm, ModelPair, ModelSpec, PromptsSpec, QuantizeSpec, Recipe, Sampling
from benchctl.recipes.speculation import Speculation
from benchmarks.bundled_runs import bundled_recipe, drafting, engine_spec, numbered_prompts, plain
from benchmarks.lossy_engines.build import build

SOUND = {"sound_d4": 4, "sound_d2": 2, "sound_d8": 8}
"""Arms without a fault, and their draft depths."""
FAULTS = {
    "accept_within_0.05": "accept-within=0.05",
    "accept_within_0.1": "accept-within=0.1",
    "accept_within_0.3": "accept-within=0.3",
    "accept_within_1": "accept-within=1",
    "bonus_row": "bonus=row,every=16",
    "kv_kept": "kv=kept",
    "state_kept": "state=kept",
    "state_kept_once": "state=kept,once=2",
    "state_late": "state=late",
    "penalties_skipped": "penalties=skipped",
    "counters_bonus": "counters=bonus",
    "counters_undrafted": "counters=undrafted",
}
"""Arms at depth 4, and their `--fault`. Those of the state do nothing to a model without a recurrent one, and
`penalties_skipped` nothing without a penalty."""


def main() -> None:
    """Measure the run, and print its folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the folder that the run's folder is made in")
    parser.add_argument("--target", default="bundled:tiny-hybrid")
    parser.add_argument("--draft", default="bundled:tiny-hybrid-draft")
    parser.add_argument("--quantize", default="q4_0", help="of bundled models, or `none`; files are taken as they are")
    parser.add_argument("--suite", default="tiny.json", help="prompts; repeated with a number before each as needed")
    parser.add_argument("--tasks", nargs="+", help="of the suite (all)")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=1, help="requests in flight, of every arm")
    parser.add_argument("--only", nargs="+", choices=[*SOUND, *FAULTS], help="these arms, in this order")
    parser.add_argument("--types", nargs="+", metavar="TYPE", help="sound arms of these types instead, at depth 4")
    parser.add_argument("--unpatched", action="store_true", help="benchctl's own build, which has no faults")
    parser.add_argument("--sampling", type=json.loads, default={}, help='as in a recipe: {"presence_penalty": 0.5}')
    parser.add_argument("--schema", type=json.loads, help="of the JSON that every answer must be")
    parser.add_argument("--engine-args", default="", help="further arguments of every arm, in one string")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    prepared = prepare(_recipe(options), recipe_folder=options.results, trusted=True)
    print(start_run(prepared, options.results, RunProgress(), ["benchmarks.lossy_engines.run", *sys.argv[1:]]))


def _recipe(options: argparse.Namespace) -> Recipe:
    typed = [_typed(kind) for kind in options.types or ()]
    arms = [plain("baseline"), *(typed or map(_arm, options.only or (*SOUND, *FAULTS)))]
    engine = engine_spec(None if options.unpatched else build(), env={"LLAMA_TRACE": "1"})
    return bundled_recipe(
        [arm.model_copy(update={"concurrency": options.concurrency}) for arm in arms],
        name="lossy-engines",
        engine=engine.model_copy(update={"args": shlex.split(options.engine_args)}),
        models=ModelPair(target=_model(options.target, options), draft=_model(options.draft, options)),
        prompts=PromptsSpec(
            suite=str(numbered_prompts(options.results, options.prompts, options.suite, options.tasks, options.schema))
        ),
        sampling=Sampling.model_validate({"max_tokens": options.max_tokens, **options.sampling}),
        blocks=1,
        warmup=0,
    )


def _arm(name: str) -> Arm:
    return drafting(name, "--fault", FAULTS[name]) if name in FAULTS else drafting(name, depth=SOUND[name])


def _typed(kind: str) -> Arm:
    return Arm(name=f"sound_{kind}", speculation=Speculation(type=kind, max=4))


def _model(source: str, options: argparse.Namespace) -> ModelSpec:
    if not source.startswith("bundled:") or options.quantize == "none":
        return ModelSpec(source=source)
    return ModelSpec(source=source, quantize=QuantizeSpec(type=options.quantize, allow_requantize=True))


if __name__ == "__main__":
    main()
