"""Every importer on a small file of the real format, and what is wrong with files that are not of it."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from benchctl.errors import UsageError
from benchctl.prompts.formats import ENDINGS, FORMATS, TaskNames, find_format, safe_name
from benchctl.prompts.load import write_suite
from benchctl.prompts.questions import Questions, read_questions
from benchctl.prompts.suite import Message, Prompt

DATA = Path(__file__).with_name("data")
SPEED_BENCH = [
    {"question_id": "a1", "category": "coding", "turns": ["Write a loop.", "Make it faster."], "multiturn": True},
    {
        "question_id": "a2",
        "category": "rag",
        "turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"],
        "multiturn": False,
    },
    {"question_id": "a3", "category": "multilingual", "turns": ["水とは何ですか。"], "multiturn": False},
]


def read(path: Path, form: str, **options: Any) -> Questions:
    return read_questions(path, path.name, find_format(form), **options)


def asked(prompt: Prompt) -> str:
    assert prompt.messages is not None
    assert [message.role for message in prompt.messages] == ["user"]
    return prompt.messages[0].text


def refusal(path: Path, form: str, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        read(path, form, **options)
    return str(caught.value)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def later_turns(count: int, of: int) -> str:
    return (
        f"In {count} of {of} prompts later turns, which depend on the model's own answers, are not asked: "
        "only the first turn is."
    )


def test_spec_bench() -> None:
    path = DATA / "spec_bench_question.jsonl"
    questions = read(path, "spec-bench")
    assert questions.kind == "chat"
    assert {task: len(prompts) for task, prompts in questions.tasks.items()} == {
        "writing": 2,
        "reasoning": 1,
        "translation": 1,
        "summarization": 1,
        "qa": 1,
        "math_reasoning": 1,
        "rag": 1,
    }
    assert asked(questions.tasks["writing"][1]) == "Write a limerick about a kettle."
    assert asked(questions.tasks["rag"][0]).splitlines()[2] == "Text: The lamp burned 31 pounds of oil."
    references = [questions.tasks[task][0].reference for task in ("writing", "reasoning", "qa", "math_reasoning")]
    assert references == [None, "Third place.", "the harbour board", "10"]
    assert questions.notes == (later_turns(3, 8),)
    assert questions.source == (
        "Spec-Bench (https://github.com/hemingkx/Spec-Bench); imported from spec_bench_question.jsonl; "
        f"SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()}; {later_turns(3, 8).rstrip('.')}"
    )


def test_mt_bench_under_either_name_of_its_turns(tmp_path: Path) -> None:
    path = DATA / "mt_bench_question.jsonl"
    questions = read(path, "mt-bench")
    assert list(questions.tasks) == ["writing", "math", "coding"]
    assert asked(questions.tasks["writing"][0]) == "Write a postcard from a mountain hut."
    assert questions.tasks["math"][0].reference == "The area is 2."
    assert questions.notes == (later_turns(3, 3),)
    renamed = tmp_path / "question.jsonl"
    renamed.write_text(path.read_text("utf-8").replace('"turns"', '"prompt"'), "utf-8")
    assert read(renamed, "mt-bench").tasks == questions.tasks


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_humaneval_in_every_container(tmp_path: Path, ending: str) -> None:
    plain = DATA / "HumanEval.jsonl"
    path = tmp_path / f"HumanEval{ending}"
    if ending == ".parquet":
        write_parquet(path, [json.loads(line) for line in plain.read_text("utf-8").splitlines()])
    else:
        path.write_bytes(gzip.compress(plain.read_bytes()) if ending.endswith(".gz") else plain.read_bytes())
    questions = read(path, "humaneval")
    assert (questions.kind, questions.notes) == ("raw", ())
    first = questions.tasks["humaneval"][0]
    assert first.prompt is not None
    assert first.prompt.startswith("from typing import List\n\n\ndef longest_gap(")
    assert first.prompt.endswith('    """\n')  # the model goes on from here: not one character may be lost
    assert first.reference == "    return max(b - a for a, b in zip(numbers, numbers[1:]))\n"
    assert asked(read(path, "humaneval", kind="chat").tasks["humaneval"][0]) == first.prompt


def test_speed_bench_leaves_out_what_the_file_withholds(tmp_path: Path) -> None:
    questions = read(write_parquet(tmp_path / "test.parquet", SPEED_BENCH), "speed-bench")
    assert {task: [asked(prompt) for prompt in prompts] for task, prompts in questions.tasks.items()} == {
        "coding": ["Write a loop."],
        "multilingual": ["水とは何ですか。"],
    }
    left_out = "1 questions were left out: the file withholds their text."
    assert questions.notes == (later_turns(1, 2), left_out)
    assert questions.source.endswith(f"; {left_out.rstrip('.')}")
    absent = write_parquet(tmp_path / "none.parquet", SPEED_BENCH[1:2])
    assert refusal(absent, "speed-bench") == "none.parquet: this file has no prompts: it withholds the text of all 1"


def answers(questions: Questions) -> dict[str, list[tuple[str, str]]]:
    """Kind and value of every answer, by task."""
    return {
        task: [(prompt.answer.kind, prompt.answer.value) for prompt in prompts if prompt.answer is not None]
        for task, prompts in questions.tasks.items()
    }


def test_gsm8k_takes_what_follows_the_mark_of_its_solution() -> None:
    questions = read(DATA / "gsm8k.jsonl", "gsm8k")
    assert answers(questions) == {"gsm8k": [("numeric", "1,145"), ("numeric", "9")]}
    first = questions.tasks["gsm8k"][0]
    assert first.answer is not None
    assert first.answer.is_given_by("The answer is 1145.")
    assert asked(first).endswith(ENDINGS["gsm8k"])
    assert "<<" not in asked(first), "the solution is not sent"


def test_mmlu_as_csv_without_header_and_as_parquet(tmp_path: Path) -> None:
    plain = read(DATA / "mmlu.csv", "mmlu")
    assert answers(plain) == {"mmlu": [("choice", "B"), ("choice", "C")]}
    assert asked(plain.tasks["mmlu"][0]).splitlines()[:4] == [
        "Which letter follows B, in the alphabet?",
        "",
        "A. A",
        "B. C",
    ]
    row = {
        "question": "How many legs has a spider?",
        "subject": "anatomy",
        "choices": ["4", "6", "8", "10"],
        "answer": 2,
    }
    hub = read(write_parquet(tmp_path / "test.parquet", [row]), "mmlu")
    assert answers(hub) == {"anatomy": [("choice", "C")]}
    headed = tmp_path / "headed.csv"
    headed.write_text("question,A,B,C,D,answer\nWhat?,1,2,3,4,0\n")
    assert answers(read(headed, "mmlu")) == {"mmlu": [("choice", "A")]}


def test_mmlu_pro_has_up_to_ten_options() -> None:
    questions = read(DATA / "mmlu_pro.jsonl", "mmlu-pro")
    assert answers(questions) == {"math": [("choice", "I")], "computer_science": [("choice", "A")]}
    assert "\nJ. ice\n" in asked(questions.tasks["math"][0])


def test_aime_under_either_name_of_its_keys() -> None:
    questions = read(DATA / "aime.jsonl", "aime")
    assert answers(questions) == {"aime": [("numeric", "072"), ("numeric", "9")]}
    assert questions.tasks["aime"][0].answer is not None
    assert questions.tasks["aime"][0].answer.is_given_by(r"\boxed{72}")


@pytest.mark.parametrize(
    ("form", "row", "word"),
    [
        ("gsm8k", {"question": "q", "answer": "no mark"}, "decimal number"),
        ("mmlu", {"question": "q", "choices": ["a", "b"], "answer": 2}, "letter or index"),
        ("mmlu", {"question": "q", "answer": "A"}, "choices"),
        ("mmlu-pro", {"question": "q", "options": ["a"] * 11, "answer": "A", "category": "c"}, "at most 10"),
        ("aime", {"problem": "q", "answer": "1000"}, "`answer`"),
        ("jsonl", {"prompt": "q", "answer": {"kind": "code", "value": "x"}}, "exact"),
    ],
)
def test_a_row_whose_answer_cannot_be_judged_is_named(
    form: str, row: dict[str, Any], word: str, tmp_path: Path
) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps(row))
    assert word in refusal(path, form)
    assert refusal(path, form).startswith("q.jsonl:1: ")


def test_rows_of_ones_own_may_carry_answers(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [{"prompt": "q", "answer": {"kind": "exact", "value": "x"}}, {"prompt": "q", "answer": "a key of my own"}]
    path.write_text("\n".join(map(json.dumps, rows)))
    questions = read(path, "jsonl")
    assert answers(questions) == {"prompts": [("exact", "x")]}
    assert "(answer)" in questions.notes[0]


def test_plain_lines_of_messages_keep_the_turns_that_the_source_answers() -> None:
    questions = read(DATA / "plain_chat.jsonl", "jsonl")
    conversation, rivers = questions.tasks["multi_turn"]
    assert conversation.messages is not None
    assert [message.role for message in conversation.messages] == ["system", "user", "assistant", "user"]
    assert (asked(rivers), rivers.reference) == ("Name three rivers.", "Rhine, Elbe, Oder")
    (greeting,) = questions.tasks[safe_name("日本語")]
    assert greeting == Prompt(messages=(Message(role="user", content="こんにちは"),), reference="こんにちは。")


def test_plain_lines_of_prompts_are_raw_unless_asked() -> None:
    questions = read(DATA / "plain_raw.jsonl", "jsonl")
    assert questions.kind == "raw"
    assert questions.tasks["prompts"] == [Prompt(prompt="Once upon a time")]
    assert questions.tasks["code"] == [Prompt(prompt="def add(a, b):\n", reference="    return a + b")]
    assert asked(read(DATA / "plain_raw.jsonl", "jsonl", kind="chat").tasks["prompts"][0]) == "Once upon a time"


def test_limit_and_tasks_choose_and_an_unknown_task_suggests_the_nearest() -> None:
    path = DATA / "spec_bench_question.jsonl"
    few = read(path, "spec-bench", limit=1, tasks=["qa", "writing"])
    assert {task: len(prompts) for task, prompts in few.tasks.items()} == {"writing": 1, "qa": 1}
    assert few.notes == (later_turns(1, 2),)  # of those that are kept
    assert refusal(path, "spec-bench", tasks=["writting"]) == (
        "--tasks: spec_bench_question.jsonl has no task 'writting'\nDid you mean 'writing'?"
    )


GOOD_LINE = '{"question_id": 1, "category": "qa", "turns": ["why"]}\n'
SHAPE = 'Spec-Bench has {"question_id": 1, "category": "writing", "turns": ["…"]}.'
LEAVE_OUT = "This leaves such rows out: benchctl models prompts import {} --format {} -o suite.json --skip-bad"
BAD_LINES: dict[str, tuple[bytes, str]] = {
    "not JSON": (b"{oops", "one JSON object a line"),
    "a list": (b"[1]", "got a list"),
    "not UTF-8": (b'{"a": "\xff"}', "UTF-8"),
    "nested": (b'{"a":' * 100_000, "recursion"),
    "no category": (b'{"turns": ["a"]}', "`category`"),
    "no turns": (b'{"category": "qa"}', "`turns`"),
    "empty turns": (b'{"category": "qa", "turns": []}', "`turns`"),
    "a blank turn": (b'{"category": "qa", "turns": ["a", " "]}', "`turns[1]`"),
    "a reference of another kind": (b'{"category": "qa", "turns": ["a"], "reference": {"a": 1}}', "`reference`"),
    "half a character": (b'{"category": "qa", "turns": ["\\ud83d"]}', "surrogate"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_one_error_with_its_place(tmp_path: Path, case: str) -> None:
    line, word = BAD_LINES[case]
    path = tmp_path / "q.jsonl"
    path.write_bytes(GOOD_LINE.encode() + line + b"\n" + line)
    message = refusal(path, "spec-bench")
    assert message.startswith("q.jsonl:2: ")
    assert word in message
    if line.startswith(b'{"category"'):
        assert message.endswith(f"{SHAPE} {LEAVE_OUT.format('q.jsonl', 'spec-bench --licence LICENCE')}")


def test_a_row_of_a_known_format_with_tools_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(GOOD_LINE.rstrip("}\n") + ', "tools": [{"type": "function"}]}\n')
    assert refusal(path, "spec-bench").startswith("q.jsonl:1: Spec-Bench has no `tools`")


BAD_PLAIN = {
    '{"prompt": "a", "messages": []}': "expected a single prompt; got `prompt` and `messages`",
    '{"messages": []}': "`messages` is an empty list",
    '{"messages": [{"role": "robot", "content": "a"}]}': "`messages[0].role` is 'robot': expected one of user, human",
    '{"messages": [{"role": "assistant", "content": "a"}]}': "user's turn",
    '{"messages": [{"role": "user", "content": "a"}]}': "--kind chat",
}


@pytest.mark.parametrize("line", BAD_PLAIN)
def test_a_bad_plain_line_is_one_error_with_its_place(tmp_path: Path, line: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": "first"}\n\n' + line)
    message = refusal(path, "jsonl")
    assert message.startswith("q.jsonl:3: ")
    assert BAD_PLAIN[line] in message
    assert message.endswith("\nSuch rows are left out with --skip-bad, or `prompts: {skip_bad: true}` in a recipe.")


def test_a_bad_row_of_a_table_is_one_error_with_its_number(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "t.parquet", [SPEED_BENCH[0], {**SPEED_BENCH[0], "category": None}])
    message = refusal(path, "speed-bench")
    assert message.startswith("t.parquet: row 2: `category`")
    assert "SPEED-Bench has a row of `question_id`, `category` and `turns`. This leaves such rows out" in message


def test_files_that_are_not_what_their_ending_says(tmp_path: Path) -> None:
    complete = gzip.compress(GOOD_LINE.encode() * 2000)
    for name, data, message in (
        ("a.parquet", b"no", "a.parquet: this is not a parquet file, or it is damaged"),
        (
            "a.jsonl.gz",
            b"no",
            "a.jsonl.gz: its name ends in .gz, but it is no gzip file\nRename it to a.jsonl where it is text.",
        ),
        ("b.jsonl.gz", complete[:-20], "b.jsonl.gz: this gzip file is truncated or damaged"),
        ("empty.jsonl", b"\n\n", "empty.jsonl: this file has no prompts"),
    ):
        (tmp_path / name).write_bytes(data)
        assert refusal(tmp_path / name, "spec-bench") == message


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "t.parquet", SPEED_BENCH)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert refusal(path, "speed-bench") == (
        "t.parquet: reading a parquet file needs pyarrow, which is not installed\n"
        'Install the extra `importers`: pip install "benchctl[importers]"'
    )


def test_categories_become_names_and_different_ones_stay_different() -> None:
    names = TaskNames()
    assert [names[text] for text in ("Math & logic", "Math/logic", "qa", "Math & logic")] == [
        "Math_logic",
        names["Math/logic"],
        "qa",
        "Math_logic",
    ]
    assert names["Math/logic"].startswith("Math_logic-")
    assert safe_name("数学") != safe_name("国語")
    assert len(names["x" * 200]) == 64


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_file_gives_the_same_bytes(tmp_path: Path, form: str) -> None:
    paths = {
        "spec-bench": DATA / "spec_bench_question.jsonl",
        "mt-bench": DATA / "mt_bench_question.jsonl",
        "humaneval": DATA / "HumanEval.jsonl",
        "gsm8k": DATA / "gsm8k.jsonl",
        "mmlu": DATA / "mmlu.csv",
        "mmlu-pro": DATA / "mmlu_pro.jsonl",
        "aime": DATA / "aime.jsonl",
        "jsonl": DATA / "plain_chat.jsonl",
    }
    path = paths.get(form) or write_parquet(tmp_path / "t.parquet", SPEED_BENCH)
    suites = [
        write_suite(read(path, form), tmp_path / f"{copy}.json", name="mine", licence="MIT") for copy in ("a", "b")
    ]
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert suites[0] == suites[1]
    assert {task: list(prompts) for task, prompts in suites[0].tasks.items()} == read(path, form).tasks
    assert sorted(file.name for file in tmp_path.glob(".*")) == []  # no draft is left behind


def test_a_suite_is_written_once_unless_forced(tmp_path: Path) -> None:
    questions = read(DATA / "plain_raw.jsonl", "jsonl")
    path = tmp_path / "suite.json"
    path.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        write_suite(questions, path, name="s", licence="MIT")
    assert path.read_text() == "mine"
    assert write_suite(questions, path, name="s", licence="MIT", force=True).name == "s"


def test_a_suite_that_would_not_load_never_gets_in_place(tmp_path: Path) -> None:
    questions = read(DATA / "plain_raw.jsonl", "jsonl")
    with pytest.raises(UsageError, match="name"):
        write_suite(questions, tmp_path / "suite.json", name="no name", licence="MIT")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_suggests_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'spec-bench'"):
        find_format("specbench")
