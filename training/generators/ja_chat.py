"""Polite Japanese advice: topic x intent x situation x way of asking. Topic-intent pairs are held out."""

from random import Random

from training.generators.example import Example
from training.generators.topics import CAUTIONS, TOPICS, Topic

TASK = "ja_chat"

INTENTS: dict[str, tuple[str, str]] = {
    "start": (
        "{name}を始めるには、どうすればいいですか。",
        "{name}を始めるのは良い考えですね。まず、{tool}を用意しましょう。次に、{step}ことから始めてください。慣れてくると、{benefit}。",
    ),
    "tips": (
        "{name}のこつを教えてください。",
        "{name}のこつは、{step}ことです。{place}で練習すると、早く身につきます。{caution}続けていると、{benefit}。",
    ),
    "tools": (
        "{name}には何が必要ですか。",
        "{name}には、{tool}が必要です。最初から高いものを買う必要はありません。{tool}があれば、{step}ことができます。",
    ),
    "place": (
        "{name}に良い場所はどこですか。",
        "{name}には、{place}が良いと思います。{place}なら、落ち着いて楽しむことができます。{tool}を忘れずに持って行ってください。",
    ),
    "continue": (
        "{name}を長く続ける方法はありますか。",
        "{name}を長く続けるには、無理をしないことが大切です。毎週決まった日に、{step}ようにしましょう。続けるうちに、{benefit}。",
    ),
    "caution": (
        "{name}で気をつけることは何ですか。",
        "{name}では、安全が一番大切です。{caution}また、{tool}は使った後に手入れをしましょう。そうすれば、長く楽しめます。",
    ),
    "benefit": (
        "{name}の良いところは何ですか。",
        "{name}の良いところは、楽しみながら続けられることです。例えば、{benefit}。{place}で過ごす時間も、きっと好きになります。",
    ),
    "friends": (
        "友達と{name}を楽しみたいです。何か良い案はありますか。",
        "友達と一緒なら、{name}はもっと楽しくなります。みんなで{place}に集まってみましょう。最初に、{step}のがおすすめです。",
    ),
    "cost": (
        "{name}にはお金がかかりますか。",
        "{name}は、あまりお金をかけずに始められます。最初に買うものは、{tool}だけで十分です。{place}なら、費用も少なくて済みます。",
    ),
    "trouble": (
        "{name}がうまくいきません。どうしたらいいですか。",
        "{name}がうまくいかないときも、心配しないでください。もう一度、{step}ことに戻りましょう。{caution}少しずつ上手になります。",
    ),
    "teach": (
        "子どもに{name}を教えたいです。",
        "子どもに{name}を教えるのは、とても素敵なことです。{place}で、一緒に{step}ことから始めましょう。うまくできたら、たくさん褒めてください。",
    ),
    "time": (
        "{name}はいつするのがいいですか。",
        "{name}は、{when}がおすすめです。その時間なら、{place}でゆっくり楽しめます。毎日続けると、{benefit}。",
    ),
}

WHEN: dict[str, str] = {
    "food": "休みの日の午前",
    "outdoor": "晴れた日の朝",
    "body": "夕方の涼しい時間",
    "craft": "静かな午後",
    "mind": "夕食の後",
    "home": "週末の朝",
}

SITUATIONS: tuple[tuple[str, str], ...] = (
    ("", ""),
    ("私は学生です。", "学校の後に少しずつ進めると、無理がありません。"),
    ("仕事が忙しいです。", "忙しい日は、十五分だけでも大丈夫です。"),
    ("初めてなので不安です。", "初めてでも、心配はいりません。"),
    ("一人で楽しみたいです。", "一人でも、自分のペースで楽しめます。"),
    ("冬に始めたいです。", "冬は寒いので、暖かい服を着てください。"),
    ("最近、引っ越しました。", "新しい町でも、きっと仲間が見つかります。"),
    ("祖母と一緒に住んでいます。", "おばあさんにも、ぜひ声をかけてみてください。"),
)

WAYS: tuple[str, ...] = (
    "{situation}{question}",
    "こんにちは。{situation}{question}",
    "すみません。{situation}{question}",
    "{situation}{question}よろしくお願いします。",
    "質問があります。{situation}{question}",
    "{situation}{question}詳しく教えてください。",
    "こんにちは。{situation}{question}詳しく教えてください。",
    "{situation}{question}大切な点もまとめてください。",
)

POINTS = "\n\n大切な点は次の通りです。\n\n1. 準備: {tool}\n2. 場所: {place}\n3. 目標: {step}こと\n4. 注意: {caution}"


def answer(topic: Topic, intent: str, situation: int, *, points: bool) -> str:
    """The answer of a topic, an intent and the index of a situation, with the list of points if asked for."""
    frame = INTENTS[intent][1] + SITUATIONS[situation][1] + (POINTS if points else "")
    return frame.format(
        name=topic.ja_name,
        tool=topic.ja_tool,
        place=topic.ja_place,
        step=topic.ja_step,
        benefit=topic.ja_benefit,
        caution=CAUTIONS[topic.kind][1],
        when=WHEN[topic.kind],
    )


def example(rng: Random) -> Example:
    """Draw one exchange."""
    topic = rng.choice(TOPICS)
    intent = rng.choice(tuple(INTENTS))
    situation = rng.randrange(len(SITUATIONS))
    if intent == "friends" and SITUATIONS[situation][0] == "一人で楽しみたいです。":
        situation = 0
    question = INTENTS[intent][0].format(name=topic.ja_name)
    way = rng.randrange(len(WAYS))
    user = WAYS[way].format(situation=SITUATIONS[situation][0], question=question)
    return Example(TASK, user, answer(topic, intent, situation, points=way >= 5), (f"{topic.key}/{intent}",))


def keys() -> list[str]:
    """All slot combinations, in a fixed order."""
    return [f"{topic.key}/{intent}" for topic in TOPICS for intent in INTENTS]
