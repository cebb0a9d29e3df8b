"""A bilingual table of everyday topics, shared by the English and the Japanese chat generator.

Every topic carries the same attributes in both languages, so that an answer is determined by its topic and its intent
and a small model can learn the attributes once and combine them with intents that it never saw them with.
"""

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Topic:
    """One topic: `key` names it in held-out lists, the `en_*`/`ja_*` fields fill the answer frames."""

    key: str
    kind: str
    en_name: str
    en_tool: str
    en_place: str
    en_step: str
    en_benefit: str
    ja_name: str
    ja_tool: str
    ja_place: str
    ja_step: str
    ja_benefit: str


with Path(__file__).with_name("topics.csv").open(encoding="utf-8", newline="") as _table:
    TOPICS: tuple[Topic, ...] = tuple(Topic(**row) for row in csv.DictReader(_table))

# kind of topic -> advice in English and in Japanese
CAUTIONS: dict[str, tuple[str, str]] = {
    "food": ("Wash your hands and watch the fire.", "手をよく洗い、火から目を離さないでください。"),
    "outdoor": ("Check the weather and drink enough water.", "天気を確かめて、水をしっかり飲んでください。"),
    "body": ("Warm up first and stop when something hurts.", "最初に準備運動をして、痛いときはすぐに休んでください。"),
    "craft": ("Keep the table clean and rest your eyes.", "机の上をきれいにして、時々目を休ませてください。"),
    "mind": ("Do not hurry and take a short break every hour.", "急がずに、一時間ごとに短い休みを取ってください。"),
    "home": ("Do not try to do everything on one day.", "一日で全部やろうとしないでください。"),
}
