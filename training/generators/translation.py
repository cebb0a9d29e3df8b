"""English to Japanese translation of template sentences: the slots determine the Japanese sentence.

Every word is seen in training; pairs of an action and a place are held out, and a longer text is held out only when
all of its sentences are.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from random import Random

from training.generators.example import Example

TASK = "translation_en_ja"


@dataclass(frozen=True)
class Action:
    """A verb with its object: English base and past forms, Japanese object with particle and verb stem before ます."""

    key: str
    base: str
    past: str
    ja_object: str
    ja_stem: str


_ACTIONS = """
read a book|read a book|本を|読み
write a letter|wrote a letter|手紙を|書き
drink hot tea|drank hot tea|熱いお茶を|飲み
eat fresh fish|ate fresh fish|新鮮な魚を|食べ
buy red apples|bought red apples|赤いりんごを|買い
take pictures|took pictures|写真を|撮り
sing a song|sang a song|歌を|歌い
play the piano|played the piano|ピアノを|弾き
study Japanese|studied Japanese|日本語を|勉強し
learn English|learned English|英語を|習い
meet a friend|met a friend|友達に|会い
wait for the bus|waited for the bus|バスを|待ち
draw a picture|drew a picture|絵を|描き
listen to music|listened to music|音楽を|聞き
watch a movie|watched a movie|映画を|見
make a sandwich|made a sandwich|サンドイッチを|作り
wash the dishes|washed the dishes|皿を|洗い
clean the floor|cleaned the floor|床を|掃除し
plant flowers|planted flowers|花を|植え
look for a key|looked for a key|鍵を|探し
use a computer|used a computer|パソコンを|使い
open the window|opened the window|窓を|開け
talk with the teacher|talked with the teacher|先生と|話し
practice tennis|practiced tennis|テニスを|練習し
help the children|helped the children|子どもたちを|手伝い
repair a bicycle|repaired a bicycle|自転車を|直し
carry a heavy box|carried a heavy box|重い箱を|運び
bake bread|baked bread|パンを|焼き
do homework|did homework|宿題を|し
feed the cat|fed the cat|猫に餌を|やり
sell old clothes|sold old clothes|古い服を|売り
teach mathematics|taught mathematics|数学を|教え
"""

ACTIONS: tuple[Action, ...] = tuple(
    Action(base, base, past, ja_object, stem)
    for base, past, ja_object, stem in (row.split("|") for row in _ACTIONS.strip().splitlines())
)

PLACES: dict[str, str] = {
    "at school": "学校で",
    "in the park": "公園で",
    "at the library": "図書館で",
    "at the station": "駅で",
    "in the kitchen": "台所で",
    "in the garden": "庭で",
    "at the office": "会社で",
    "at the hospital": "病院で",
    "in the small shop": "小さな店で",
    "near the river": "川の近くで",
    "at home": "家で",
    "at the hotel": "ホテルで",
    "in the museum": "美術館で",
    "on the beach": "海岸で",
    "in the old town": "古い町で",
    "at the airport": "空港で",
    "in the classroom": "教室で",
    "at the market": "市場で",
    "in the quiet room": "静かな部屋で",
    "at the coffee shop": "喫茶店で",
}

SUBJECTS: dict[str, str] = {
    "I": "私は",
    "My friend": "私の友達は",
    "The teacher": "先生は",
    "My mother": "母は",
    "My father": "父は",
    "The student": "学生は",
    "Mr. Tanaka": "田中さんは",
    "Ms. Sato": "佐藤さんは",
    "My sister": "妹は",
    "My brother": "弟は",
    "The doctor": "医者は",
    "The young man": "若い男の人は",
    "The old woman": "おばあさんは",
    "We": "私たちは",
    "They": "彼らは",
    "The children": "子どもたちは",
}

PAST: dict[str, str] = {
    "yesterday": "昨日、",
    "last week": "先週、",
    "this morning": "今朝、",
    "last night": "昨夜、",
    "two days ago": "二日前、",
    "last summer": "去年の夏、",
    "on Sunday": "日曜日に、",
}

FUTURE: dict[str, str] = {
    "tomorrow": "明日、",
    "next week": "来週、",
    "tonight": "今夜、",
    "next month": "来月、",
    "this weekend": "今週末、",
    "after dinner": "夕食の後、",
    "in the afternoon": "午後に、",
}

REASONS: dict[str, str] = {
    "because it was raining": "雨が降っていたので、",
    "because it was hot": "暑かったので、",
    "because there was some time": "時間があったので、",
    "because the train was late": "電車が遅れたので、",
}

FRAMES: tuple[str, ...] = ("past", "past", "future", "want", "not", "reason", "must")

INSTRUCTIONS: tuple[str, ...] = (
    "Translate into Japanese: {text}",
    "Please translate this into Japanese.\n\n{text}",
    "How do you say this in Japanese?\n{text}",
    "Translate the following English text into Japanese.\n\n{text}",
)


def sentence(rng: Random, subject: str, action: Action, place: str) -> tuple[str, str]:
    """One English sentence and its Japanese translation; the frame and the time are drawn."""
    ja_subject, ja_place = SUBJECTS[subject], PLACES[place]
    predicate = f"{ja_place}{action.ja_object}{action.ja_stem}"
    frame = rng.choice(FRAMES)
    if frame == "past":
        time = rng.choice(tuple(PAST))
        return f"{subject} {action.past} {place} {time}.", f"{PAST[time]}{ja_subject}{predicate}ました。"
    if frame == "future":
        time = rng.choice(tuple(FUTURE))
        return f"{subject} will {action.base} {place} {time}.", f"{FUTURE[time]}{ja_subject}{predicate}ます。"
    if frame == "want":
        time = rng.choice(tuple(FUTURE))
        return f"I want to {action.base} {place} {time}.", f"{FUTURE[time]}私は{predicate}たいです。"
    if frame == "not":
        time = rng.choice(tuple(PAST))
        return f"{subject} did not {action.base} {place} {time}.", f"{PAST[time]}{ja_subject}{predicate}ませんでした。"
    if frame == "reason":
        reason = rng.choice(tuple(REASONS))
        return f"{subject} {action.past} {place} {reason}.", f"{REASONS[reason]}{ja_subject}{predicate}ました。"
    time = rng.choice(tuple(FUTURE))
    return (
        f"Please {action.base} {place} {time}.",
        f"{FUTURE[time]}{ja_place}{action.ja_object}{action.ja_stem}なさい。",
    )


def example(rng: Random, sentences: int | None = None, pairs: Sequence[tuple[Action, str]] = ()) -> Example:
    """Draw a text of one to four sentences, or of `sentences`; actions and places come from `pairs` if it is given."""
    drawn, used = [], []
    for _ in range(sentences or rng.choice((1, 2, 2, 3, 4))):
        subject = rng.choice(tuple(SUBJECTS))
        action, place = rng.choice(pairs) if pairs else (rng.choice(ACTIONS), rng.choice(tuple(PLACES)))
        drawn.append(sentence(rng, subject, action, place))
        used.append(f"{action.key}/{place}")
    text = " ".join(english for english, _ in drawn)
    user = rng.choice(INSTRUCTIONS).format(text=text)
    return Example(TASK, user, "".join(japanese for _, japanese in drawn), tuple(used))


def pairs_of(names: Collection[str]) -> list[tuple[Action, str]]:
    """The pairs of an action and a place that slot combinations name."""
    return [(action, place) for action in ACTIONS for place in PLACES if f"{action.key}/{place}" in names]


def keys() -> list[str]:
    """All slot combinations, in a fixed order."""
    return [f"{action.key}/{place}" for action in ACTIONS for place in PLACES]
