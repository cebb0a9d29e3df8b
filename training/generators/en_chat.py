"""Friendly English advice: topic x intent x situation x way of asking. Topic-intent pairs are held out."""

from random import Random

from training.generators.example import Example
from training.generators.topics import CAUTIONS, TOPICS, Topic

TASK = "chat"

INTENTS: dict[str, tuple[str, str]] = {
    "start": (
        "How can I start {name}?",
        "Starting {name} is a good idea. First, get {tool}. Then go to {place} and {step}. After a while, {benefit}.",
    ),
    "tips": (
        "Can you give me some tips for {name}?",
        "Here are three tips for {name}:\n\n1. Find {place}.\n2. Start small: {step}.\n3. {caution}\n\n"
        "If you keep going, {benefit}.",
    ),
    "tools": (
        "What do I need for {name}?",
        "For {name} you need {tool}. You do not have to buy anything expensive. With {tool}, you can {step}.",
    ),
    "place": (
        "Where is a good place for {name}?",
        "A good place for {name} is {place}. It is easy to relax there. Do not forget to bring {tool}.",
    ),
    "caution": (
        "What should I be careful about with {name}?",
        "Safety comes first with {name}. {caution} Also, take good care of your things: {tool} lasts longer that way.",
    ),
    "benefit": (
        "What is good about {name}?",
        "The best thing about {name} is that {benefit}. You also spend some time in a good place, such as {place}.",
    ),
    "plan": (
        "Please make a plan for {name}.",
        "Here is a simple plan for {name}:\n\n- Monday: buy {tool}.\n- Wednesday: visit {place}.\n"
        "- Saturday: {step}.\n\nFollow the plan for a month and {benefit}.",
    ),
    "trouble": (
        "I am not good at {name}. What should I do?",
        "Do not worry. Many people find {name} difficult at first. Go back to the basics: {step}. {caution}",
    ),
}

SITUATIONS: tuple[tuple[str, str], ...] = (
    ("", ""),
    ("I am a student. ", " A little time after school is enough."),
    ("I am very busy. ", " Even fifteen minutes a day will help."),
    ("I have never tried it before. ", " Everyone was a beginner once."),
    ("I want to do it alone. ", " You can go at your own pace."),
    ("I have just moved to a new town. ", " You may meet new people too."),
    ("My sister wants to join me. ", " Your sister will enjoy it too."),
)

WAYS: tuple[str, ...] = (
    "{situation}{question}",
    "Hello! {situation}{question}",
    "{situation}{question} Thank you.",
    "{situation}{question} Please explain in detail.",
    "{situation}{question} Add a checklist, please.",
)

CHECKLIST = (
    "\n\nHere is a checklist:\n\n- What you need: {tool}\n- Where to go: {place}\n- Your goal: {step}\n"
    "- Safety: {caution}"
)


def answer(topic: Topic, intent: str, situation: int, *, checklist: bool) -> str:
    """The answer of a topic, an intent and the index of a situation, with a checklist if asked for."""
    frame = INTENTS[intent][1] + SITUATIONS[situation][1] + (CHECKLIST if checklist else "")
    return frame.format(
        name=topic.en_name,
        tool=topic.en_tool,
        place=topic.en_place,
        step=topic.en_step,
        benefit=topic.en_benefit,
        caution=CAUTIONS[topic.kind][0],
    )


def example(rng: Random) -> Example:
    """Draw one exchange."""
    topic = rng.choice(TOPICS)
    intent = rng.choice(tuple(INTENTS))
    situation = rng.randrange(len(SITUATIONS))
    question = INTENTS[intent][0].format(name=topic.en_name)
    way = rng.randrange(len(WAYS))
    user = WAYS[way].format(situation=SITUATIONS[situation][0], question=question)
    return Example(TASK, user, answer(topic, intent, situation, checklist=way >= 3), (f"{topic.key}/{intent}",))


def keys() -> list[str]:
    """All slot combinations, in a fixed order."""
    return [f"{topic.key}/{intent}" for topic in TOPICS for intent in INTENTS]
