"""The turns of a conversation as files have them, as OpenAI's chat API has them.

A turn has `role` and `content` (OpenAI, SpecForge, speculators) or `from` and `value` (ShareGPT). ShareGPT's
`function_call` is a turn of the assistant that calls a tool, and its `observation` the tool's answer. Errors are
RowErrors that name the key as the file has it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from benchctl.prompts.row import Fields, RowError
from benchctl.prompts.suite import IMAGES, Message
from benchctl.recipes.problems import Plain, quoted

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
_ROLES: dict[str, Role] = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "model", "bot", "function_call"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response", "function", "ipython"), "tool"),
    "system": "system",
}
_SENT = {"role", "from", "content", "value", "tool_calls", "tool_call_id", "name", "reasoning_content"}
_REFUSED = {
    "function_call": "write the call as `tool_calls`",
    "reasoning": "write it as `reasoning_content`",
    "thinking": "write it as `reasoning_content`",
    "prefix": "a turn that the model goes on with cannot be sent",
    **dict.fromkeys(("image", "images"), "write it as a part of `content` of type `image_url`"),
    **dict.fromkeys(("audio", "video", "videos", "file"), "benchctl sends text and images alone"),
}
"""Keys of a turn that the model would be shown, and what to do about each."""


def role_of(turn: Plain, key: str) -> Role:
    """Return whose turn it is. `key`: where the turn stands, such as `messages[0]`."""
    if not isinstance(turn, dict):
        raise RowError(f"`{key}`: expected a turn, an object of `role` and `content`; got {quoted(turn)}")
    name = next((name for name in ("role", "from") if turn.get(name) is not None), None)
    if name is None:
        raise RowError(f"`{key}` has neither `role` nor `from`: it does not say whose turn it is")
    role = turn[name]
    if role == "developer":
        raise RowError(f"`{key}.{name}` is 'developer', which a chat template may leave out silently: write 'system'")
    if not isinstance(role, str) or role.lower() not in _ROLES:
        raise RowError(f"`{key}.{name}` is {quoted(role)}: expected one of {', '.join(_ROLES)}")
    return _ROLES[role.lower()]


def message_of(turn: Fields, key: str) -> Message:
    """Return a turn that is sent."""
    role = role_of(turn, key)
    for name, remedy in _REFUSED.items():
        if turn.get(name) and name in turn:
            raise RowError(f"`{key}.{name}` would not be sent: {remedy}")
    name = "value" if "content" not in turn and "value" in turn else "content"
    content: Any = turn.get(name)
    calls = turn.get("tool_calls") or None
    if turn.get("role", turn.get("from")) == "function_call":
        content, calls = None, _calls_in(content, f"{key}.{name}")
    further = {part: turn[part] for part in ("tool_call_id", "name", "reasoning_content") if turn.get(part)}
    for part, text in further.items():
        if not isinstance(text, str):
            raise RowError(f"`{key}.{part}`: expected text; got {quoted(text)}")
    if calls is not None and (role != "assistant" or not isinstance(calls, list)):
        raise RowError(f"`{key}.tool_calls`: expected a list of calls in a turn of the assistant")
    if isinstance(content, list):
        content = [_part(part, f"{key}.{name}[{number}]") for number, part in enumerate(content)]
    elif not (isinstance(content, str) or (content is None and calls is not None)):
        raise RowError(f"`{key}.{name}`: expected text; got {quoted(content)}")
    return Message(
        role=role,
        content=content,
        tool_calls=None if calls is None else tuple(_call(call, f"{key}.tool_calls") for call in calls),
        **further,
    )


def text_after(turn: Fields) -> str | None:
    """Return the text of a turn that is not sent; `None` where it has none."""
    text = turn.get("content", turn.get("value"))
    return text if isinstance(text, str) else None


def unsent_keys(turns: Sequence[Fields], form: str) -> list[str]:
    """Return the keys of turns that say nothing to a model, such as `conversation[].timestamp`."""
    keys = dict.fromkeys(key for turn in turns for key, value in turn.items() if value not in (None, [], {}, ""))
    return [f"{form}[].{key}" for key in keys if key not in _SENT]


def _part(part: Plain, key: str) -> Fields:
    """Return a part of a turn as OpenAI's API has it: a text, or an image by its address."""
    kind = part.get("type", "text") if isinstance(part, dict) else None
    if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    address = part.get(kind) if kind in (IMAGES, "image") else None
    image = {"url": address} if isinstance(address, str) else address
    if isinstance(image, dict) and isinstance(image.get("url"), str):
        return {"type": IMAGES, IMAGES: image}
    shown = f"is of type {quoted(kind)}" if kind else f"is {quoted(part)}"
    raise RowError(f"`{key}` {shown}: benchctl sends text and images (`image_url`) alone")


def _calls_in(content: Plain, key: str) -> list[Plain]:
    """Return the calls in the text of ShareGPT's `function_call`, a JSON object or a list of them."""
    try:
        calls = json.loads(content) if isinstance(content, str) else content
    except (ValueError, RecursionError):
        calls = None
    if not isinstance(calls, dict | list):
        raise RowError(f'`{key}`: expected a call such as {{"name": "…", "arguments": {{…}}}}; got {quoted(content)}')
    return calls if isinstance(calls, list) else [calls]


def _call(call: Plain, key: str) -> Fields:
    """Return a call as OpenAI's API has it: its arguments as a JSON text."""
    inner = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise RowError(f"`{key}`: expected calls with `function.name` and `function.arguments`; got {quoted(call)}")
    arguments = inner.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    function = {**inner, "arguments": arguments}
    return {**call, "function": function} if inner is not call else {"type": "function", "function": function}


def tools_of(tools: Plain) -> Plain:
    """Return `tools` as OpenAI's API has them: data sets keep them as a JSON text, or without `type`."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools)
        except (ValueError, RecursionError):
            return tools
    if not isinstance(tools, list):
        return tools
    return [
        {"type": "function", "function": tool}
        if isinstance(tool, dict) and "function" not in tool and "name" in tool and "parameters" in tool
        else tool
        for tool in tools
    ]
