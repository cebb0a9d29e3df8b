"""A row of the user's own file, in the forms that people have them in.

- `prompt`; `messages` (OpenAI's chat format, also as `prompt`); `conversations` or `conversation` (ShareGPT,
  SpecForge, speculators); `instruction` with `input`, `output` and `history` (Alpaca);
- `body` with any of these: a line of an OpenAI batch file;
- `system`, `tools` and the other keys of a request beside them; `task`, `reference` and `answer` as in a suite.

Of a conversation everything up to the last turn of the user, or of a tool, is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pydantic import ConfigDict

from benchctl.prompts.answers import Answer
from benchctl.prompts.row import Fields, Question, Reference, Row, RowError, Text
from benchctl.prompts.suite import SENT_FIELDS, Message
from benchctl.prompts.turns import message_of, role_of, text_after, tools_of, unsent_keys
from benchctl.recipes.problems import Plain, quoted
from benchctl.recipes.schema import PENALTIES
from benchctl.text import one_line

NO_TASK = "prompts"
"""The task of a row that names none."""
FORMS = ("prompt", "messages", "conversations", "conversation", "instruction")
"""The keys that hold a prompt: a row has one of them."""
_KNOWN = {"id", "custom_id", "method", "url", "stream", "stream_options", "body", *SENT_FIELDS}
"""What names a row, how a batch file has it sent, or is sent."""
_REFUSED: dict[str, Plain] = {
    **dict.fromkeys(("stop_token_ids", "bad_words")),
    **dict.fromkeys(("functions", "function_call", "reasoning_effort", "thinking")),
    **dict.fromkeys(("chat_template", "documents", "suffix")),
    **dict.fromkeys(("add_generation_prompt", "parallel_tool_calls"), True),
    "continue_final_message": False,
    **dict.fromkeys(("n", "best_of"), 1),
    **dict.fromkeys(("min_p", "min_tokens"), 0),
}
"""Keys of a request that change what is asked or may be answered and that no recipe has, with the value that does
not."""
_ALIASES = {
    "repetition_penalty": "repeat_penalty",
    **dict.fromkeys(("guided_regex", "structured_outputs.regex"), "regex"),
    **dict.fromkeys(("guided_choice", "structured_outputs.choice"), "choice"),
    **dict.fromkeys(("guided_grammar", "ebnf", "structured_outputs.grammar"), "grammar"),
    **dict.fromkeys(("guided_json", "json_schema", "structured_outputs.json"), "response_format"),
}
"""Other servers' names of the keys of a request."""
_NEUTRAL: dict[str, Plain] = {
    "response_format": {"type": "text"},
    "repeat_penalty": 1,
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), 0),
    "logprobs": False,
}
"""Values of its keys that change nothing."""
_OF_THE_PROMPT = {
    **dict.fromkeys(("input", "instructions", "history", "context", "passage"), "put it into the prompt"),
    "developer": "call it `system`",
    **dict.fromkeys(("image", "images"), "write it as a part of a message's `content`, of type `image_url`"),
    **dict.fromkeys(("audio", "audios", "video", "videos"), "benchctl sends text and images alone"),
}
"""Keys beside a prompt that seem to belong to it, and what to do about each."""


class NoPromptError(RowError):
    """A row has none of `FORMS`."""


class OwnRow(Row):
    """A row of the user's own."""

    model_config = ConfigDict(extra="allow")

    name = "jsonl"
    title = "JSON lines"
    kind = None
    takes_requests = True
    example = '{"prompt": "…"} or {"messages": [{"role": "user", "content": "…"}]}'

    task: Text | None = None
    prompt: Text | None = None
    system: Text | None = None
    reference: Reference = None
    answer: Plain = None
    """An answer to judge by where it is a mapping, else a key of the user's own."""

    @classmethod
    def question_of(cls, fields: Fields) -> Question | None:
        """See `Row.question_of`. Raises NoPromptError for a row without a prompt."""
        row, form, turns = _as_a_request(fields)
        question = super().question_of(row)
        return question if question is None or turns is None else _up_to_the_last_question(question, form, turns)

    def _question(self) -> Question:
        extra = {key: value for key, value in (self.model_extra or {}).items() if value is not None}
        judged = isinstance(self.answer, dict)
        unsent = [key for key in extra if key not in _KNOWN or (key in PENALTIES and extra[key] == _NEUTRAL[key])]
        request = {
            key: extra[key] for key in SENT_FIELDS if extra.get(key) not in (None, [], {}, "", _NEUTRAL.get(key))
        }
        return Question(
            self.task or NO_TASK,
            self._content(),
            self.reference,
            Answer.model_validate(self.answer) if judged else None,
            request=request,
            unsent=(*unsent, *(["answer"] if self.answer is not None and not judged else ())),
        )

    def _content(self) -> str | tuple[Message, ...]:
        if self.system is None:
            return self.prompt or ""
        asked = () if self.prompt is None else (Message(role="user", content=self.prompt),)
        return (Message(role="system", content=self.system), *asked)


def _as_a_request(fields: Fields) -> tuple[Fields, str, list[Plain] | None]:
    """Return a row, the key of its prompt, and the turns of a conversation, which the row then no longer has."""
    inner = fields.get("body")
    row = {**fields, **inner} if isinstance(inner, dict) else {**fields}
    for key, neutral in _REFUSED.items():
        idle = key == "parallel_tool_calls" and not row.get("tools")
        if not idle and row.get(key) not in (None, [], {}, neutral):
            raise RowError(
                f"`{key}` changes the answer, and benchctl does not send it: leave it out; what all prompts share "
                "is set in the recipe (sampling, engine.args)"
            )
    row |= _renamed(row)
    forms = [key for key in FORMS if row.get(key) is not None]
    if not forms:
        keys = ", ".join(one_line(key, 40) for key in row if key != "body") or "none"
        raise NoPromptError(f"the row has none of {', '.join(f'`{form}`' for form in FORMS)}; its keys: {keys}")
    if len(forms) > 1 and len(forms := _without_copies(row, forms)) > 1:
        raise RowError(f"expected a single prompt; got {' and '.join(f'`{form}`' for form in forms)}")
    form = forms[0]
    if form == "instruction":
        row |= _of_alpaca(row)
    texts = _texts(row[form])
    for key, remedy in _OF_THE_PROMPT.items():
        if row.get(key) and not any(row[key] in text for text in texts if isinstance(row[key], str)):
            raise RowError(f"`{key}` seems to belong to the prompt and would not be sent: {remedy}, or leave it out")
    if (second := row.pop("system_prompt", None)) and row.get("system"):
        raise RowError("expected `system` or `system_prompt`; got both")
    row["system"] = row.get("system") or second or None
    row["tools"] = tools_of(row.get("tools"))
    if isinstance(row[form], str) and form == "prompt":
        return row, form, None
    turns = row.pop(form)
    if form == "prompt" and _are_token_ids(turns):
        raise RowError("`prompt` is a list of token ids; write the text of which they are made: benchctl sends text")
    if form == "prompt" and isinstance(turns, list) and not all(isinstance(turn, dict) for turn in turns):
        raise NoPromptError("`prompt` is a list of texts; a row has a single prompt")
    if not isinstance(turns, list):
        raise RowError(f"`{form}`: expected {'text' if form == 'prompt' else 'a list of turns'}; got {quoted(turns)}")
    if not turns:
        raise RowError(f"`{form}` is an empty list: there is nothing to ask")
    return row, form, turns


def _are_token_ids(prompt: Plain) -> bool:
    """Whether it is a list of whole numbers, or of such lists."""
    items = prompt if isinstance(prompt, list) else []
    ids = [token for item in items for token in (item if isinstance(item, list) else [item])]
    return bool(ids) and all(type(token) is int for token in ids)


def _renamed(row: Fields) -> Fields:
    """Return the keys of a request by benchctl's names and forms, taken off the row where it has others."""
    outputs = row.pop("structured_outputs", None)
    inner = outputs if isinstance(outputs, dict) else {} if outputs is None else {"": outputs}
    row |= {f"structured_outputs.{key}": value for key, value in inner.items() if value is not None}
    renamed: Fields = {}
    for key, name in _ALIASES.items():
        if (value := row.pop(key, None)) in (None, "", {}, []):
            continue
        if row.get(name) not in (None, value):
            raise RowError(f"`{key}` and `{name}` say the same thing differently: leave one of them out")
        if name == "response_format":
            value = {"type": "json_schema", "json_schema": {"name": "answer", "schema": value}}
        renamed[name] = value
    if unread := next((key for key in row if key.startswith("structured_outputs.")), None):
        raise RowError(f"`{unread}` changes the answer, and benchctl does not send it: leave it out")
    if isinstance(row.get("stop"), str):
        renamed["stop"] = [row["stop"]] if row["stop"] else None
    if isinstance(row.get("logprobs"), int):  # some count how many are listed beside each token
        renamed["logprobs"] = bool(row["logprobs"]) or None
    return renamed


def _without_copies(row: Fields, forms: Sequence[str]) -> list[str]:
    """Return the forms without texts that only repeat a turn of the row's conversation; they are taken off the row."""
    texts = [text for form in forms if isinstance(row[form], list) for text in _texts(row[form])]
    for form in forms:
        if isinstance(row[form], str) and row[form] in texts:
            del row[form]
    return [form for form in forms if form in row]


def _texts(prompt: Plain) -> list[str]:
    """Return the texts of a prompt: of its turns, or itself."""
    turns = prompt if isinstance(prompt, list) else [{"content": prompt}]
    texts = [turn.get("content", turn.get("value")) for turn in turns if isinstance(turn, dict)]
    return [text for text in texts if isinstance(text, str)]


def _of_alpaca(row: Fields) -> Fields:
    """Return Alpaca's instruction with its input as turns, and its output as the reference; takes both off the row.

    Dolly calls them `context` and `response`.
    """
    turns = list[Plain]()
    history = row.pop("history", None) or []
    for pair in history if isinstance(history, list) else [history]:
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowError(f"`history`: expected pairs of a question and its answer; got {quoted(pair)}")
        turns += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    parts = [part for part in (row["instruction"], row.pop("context", None), row.pop("input", None)) if part]
    texts = [part for part in parts if isinstance(part, str)]
    if not texts or len(texts) < len(parts):
        raise RowError("`instruction` and `input` (or `context`): expected texts that are not all empty")
    turns.append({"role": "user", "content": "\n\n".join(texts)})
    answer = next((key for key in ("reference", "output", "response") if row.get(key)), "reference")
    return {"instruction": turns, "reference": row.pop(answer, None)}


def _up_to_the_last_question(question: Question, form: str, turns: Sequence[Plain]) -> Question:
    """Return the question with the turns up to the last that is to be answered, and the next answer to it."""
    roles = [role_of(turn, f"{form}[{number}]") for number, turn in enumerate(turns)]
    system = question.content if isinstance(question.content, tuple) else ()
    if "user" not in roles:
        raise RowError(f"expected `{form}` with a user's turn that is to be answered; got none")
    if system and "system" in roles:
        raise RowError(f"`system` stands beside a system turn in `{form}`: leave one of them out")
    end = max(number for number, role in enumerate(roles) if role in ("user", "tool")) + 1
    messages = tuple(message_of(turn, f"{form}[{number}]") for number, turn in enumerate(turns[:end]))
    following = (text_after(turn) for turn, role in zip(turns[end:], roles[end:], strict=True) if role == "assistant")
    return replace(
        question,
        content=(*system, *messages),
        reference=question.reference or next(filter(None, following), None),
        earlier_turns=roles.count("user") - 1,
        goes_on=end < len(turns),
        unsent=(*question.unsent, *unsent_keys(turns[:end], form)),
    )
