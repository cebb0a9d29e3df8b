"""Check the exported pair with llama-server: same greedy tokens as transformers, same tokenization, acceptance.

    python -m training.verify --binaries FOLDER --suite prompts/tiny.json --work FOLDER
        --target FILE.gguf [--draft FILE.gguf] [--type draft-simple] [--target-folder HF] [--draft-folder HF]

prints one JSON object. Without the Hugging Face folders only the speculation tables are measured; without a draft the
target drafts for itself (`--type draft-mtp`).
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from training.server import running

LENGTH = 128
# <|endoftext|> and <|im_end|>: llama.cpp ends an answer at either.
ENDS = (0, 2)
TEXTS = (
    "\n\n\n",
    "a\n\n    b\n\tc\r\n",
    "def f(x):\n    if x:\n        return [1, 2]\n\n    return {}\n",
    "今日は良い天気ですね。\n散歩に行きましょう。",
    "全角　スペースとＡＢＣ、ｶﾅ",
    "emoji 👩‍👩‍👧 and é, ñ, ü",
    "1234567890 3.14159 1,000,000",
    "<|im_start|>user\nHello!<|im_end|>\n",
    "don't I'm we'll it's",
    "   leading and trailing   ",
    "no\u00a0break and zero\u200bwidth",
)
RAW = (
    "def largest(numbers):\n    result = None\n    for number in numbers:\n",
    "昨日、私は図書館で",
    "The bridge was built in\n\n",
    "class Stack:\n    def __init__(self):\n",
)


def rendered(suite: Path) -> list[tuple[str, str, str]]:
    """Task, rendered prompt and reference of every prompt of a chat suite."""
    tasks = json.loads(suite.read_text("utf-8"))["tasks"]
    return [
        (
            task,
            "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in prompt["messages"])
            + "<|im_start|>assistant\n",
            prompt.get("reference", ""),
        )
        for task, prompts in tasks.items()
        for prompt in prompts
    ]


def against_transformers(options: argparse.Namespace, model: Path, folder: Path) -> dict[str, Any]:
    """Greedy tokens of the server and of transformers in float32, and tokenization both ways."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reference: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = [text for _, text, _ in rendered(options.suite)] + list(RAW)
    texts = list(TEXTS) + prompts + [answer for _, _, answer in rendered(options.suite)]
    differing, tokens, mismatches = [], 0, 0
    with running(
        options.binaries / "llama-server", model, *options.server_option, log=options.work / "server.log"
    ) as server:
        for prompt in prompts:
            ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            answer = server.complete(ids, LENGTH)["tokens"]
            with torch.no_grad():
                output = reference.generate(
                    torch.tensor([ids]), max_new_tokens=LENGTH, do_sample=False, eos_token_id=list(ENDS)
                )
            expected = [token for token in output[0, len(ids) :].tolist() if token not in ENDS]
            answer = [token for token in answer if token not in ENDS]
            tokens += len(expected)
            if answer != expected:
                fork = next((i for i, pair in enumerate(zip(answer, expected, strict=False)) if pair[0] != pair[1]), -1)
                with torch.no_grad():
                    logits = reference(torch.tensor([ids + expected[: max(fork, 0)]])).logits[0, -1].log_softmax(-1)
                best = logits.topk(2).values
                differing.append({"prompt": prompt[:60], "token": fork, "margin": round(float(best[0] - best[1]), 5)})
        counted = 0
        for text in texts:
            ours = tokenizer(text, add_special_tokens=False)["input_ids"]
            theirs = server.post("/tokenize", {"content": text, "add_special": False, "parse_special": True})["tokens"]
            back = server.post("/detokenize", {"tokens": ours})["content"]
            counted += len(ours)
            mismatches += ours != theirs or back != text
    return {
        "prompts": len(prompts),
        "identical": len(prompts) - len(differing),
        "tokens": tokens,
        "differing": differing,
        "tokenized_texts": len(texts),
        "tokenized_tokens": counted,
        "tokenization_mismatches": mismatches,
    }


def measure(options: argparse.Namespace, target: Path, *extra: str) -> list[dict[str, Any]]:
    """One answer for every prompt of the suite."""
    answers = []
    with running(options.binaries / "llama-server", target, *extra, log=options.work / "server.log") as server:
        for task, prompt, reference in rendered(options.suite):
            answer = server.complete(prompt, LENGTH)
            timings = answer["timings"]
            answers.append(
                {
                    "task": task,
                    "prompt": prompt,
                    "content": answer["content"],
                    "tokens": answer["tokens"],
                    "reached_end": answer.get("stop_type") == "eos",
                    "right": answer["content"].strip() == reference.strip(),
                    "drafted": timings.get("draft_n", 0),
                    "accepted": timings.get("draft_n_accepted", 0),
                    "tok_per_s": timings["predicted_per_second"],
                }
            )
    return answers


def rates(answers: list[dict[str, Any]]) -> dict[str, str]:
    """Accepted over drafted by task and overall."""
    tasks = dict.fromkeys(answer["task"] for answer in answers)
    groups = {task: [answer for answer in answers if answer["task"] == task] for task in tasks} | {"all": answers}
    return {
        task: f"{sum(a['accepted'] for a in group)}/{sum(a['drafted'] for a in group)}"
        f" = {sum(a['accepted'] for a in group) / max(1, sum(a['drafted'] for a in group)):.3f}"
        for task, group in groups.items()
    }


def forks(
    options: argparse.Namespace, model: Path, baseline: list[dict[str, Any]], arm: list[dict[str, Any]]
) -> list[Any]:
    """Where an arm's tokens leave the baseline's, and by how much the target alone preferred its token there (nats)."""
    differences = []
    with running(options.binaries / "llama-server", model, log=options.work / "server.log") as server:
        for expected, answered in zip(baseline, arm, strict=True):
            if expected["tokens"] == answered["tokens"]:
                continue
            pairs = enumerate(zip(expected["tokens"], answered["tokens"], strict=False))
            fork = next((i for i, (a, b) in pairs if a != b), min(len(expected["tokens"]), len(answered["tokens"])))
            ids = server.post("/tokenize", {"content": expected["prompt"], "parse_special": True})["tokens"]
            answer = server.complete(ids + expected["tokens"][:fork], 1, n_probs=2)
            best = answer["completion_probabilities"][0]["top_logprobs"]
            margin = round(best[0]["logprob"] - best[1]["logprob"], 4)
            position = {"task": expected["task"], "prompt": expected["prompt"][17:80], "token": fork}
            differences.append({**position, "margin": margin})
    return differences


def speculation(options: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Acceptance at every depth and identity with the baseline, all models in one number format."""
    files = []
    for source in filter(None, (options.target, options.draft)):
        model = source if kind == "bf16" else options.work / f"{source.stem}.{kind}.gguf"
        if model != source:
            subprocess.run([options.binaries / "llama-quantize", source, model, kind], check=True, capture_output=True)
        files.append(model)
    drafting = ("-md", str(files[1])) if options.draft else ()
    baseline = measure(options, files[0])
    second = measure(options, files[0])
    tasks = dict.fromkeys(answer["task"] for answer in baseline)
    table: dict[str, Any] = {
        "repeat_identical": sum(a["tokens"] == b["tokens"] for a, b in zip(baseline, second, strict=True)),
        "ended": sum(answer["reached_end"] for answer in baseline),
        "right": {task: sum(a["right"] for a in baseline if a["task"] == task) for task in tasks},
        "tok_per_s": round(sum(a["tok_per_s"] for a in baseline) / len(baseline)),
        "answers": {answer["task"]: answer["content"] for answer in baseline},
    }
    for depth in options.depths:
        arm = (*drafting, "--spec-type", options.type, "--spec-draft-n-max", str(depth))
        answers = measure(options, files[0], *arm)
        table[f"depth_{depth}"] = rates(answers) | {
            "identical": sum(
                a["tokens"] == b["tokens"] and a["content"] == b["content"]
                for a, b in zip(baseline, answers, strict=True)
            ),
            "prompts": len(answers),
            "forks": forks(options, files[0], baseline, answers),
            "tok_per_s": round(sum(a["tok_per_s"] for a in answers) / len(answers)),
        }
    return table


def main() -> None:
    """Run the checks that the options allow."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, required=True, help="folder of llama-server and llama-quantize")
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True, help="folder for derived files and the server's log")
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--type", default="draft-simple", help="llama-server's --spec-type")
    parser.add_argument("--depths", type=int, nargs="*", default=[2, 4, 8], help="how many tokens are drafted in a row")
    parser.add_argument("--target-folder", type=Path, help="written by training.export --rounded")
    parser.add_argument("--draft-folder", type=Path)
    parser.add_argument("--kinds", nargs="*", default=["bf16", "f32", "q8_0"])
    parser.add_argument(
        "--server-option", action="append", default=[], help="one more option, as in --server-option=-fa"
    )
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {}
    if options.target_folder:
        report["target_against_transformers"] = against_transformers(options, options.target, options.target_folder)
    if options.draft_folder:
        report["draft_against_transformers"] = against_transformers(options, options.draft, options.draft_folder)
    report["speculation"] = {kind: speculation(options, kind) for kind in options.kinds}
    print(json.dumps(report, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
