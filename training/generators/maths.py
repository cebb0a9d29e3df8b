"""Word problems with small numbers, worked step by step. Pairs of numbers are held out per kind of problem."""

from random import Random

from training.generators.example import Example

TASK = "maths"

NAMES: tuple[str, ...] = ("Emi", "Ken", "Mary", "Tom", "Yuki", "Anna", "Hiro", "Lucy", "Ben", "Mika", "Sara", "Leo")

BOXES: dict[str, str] = {
    "boxes": "eggs",
    "bags": "apples",
    "baskets": "oranges",
    "packs": "pencils",
    "shelves": "books",
    "plates": "cookies",
    "trays": "cups",
    "jars": "candies",
}

NUMBERS: tuple[int, ...] = tuple(range(2, 13))


def example(rng: Random) -> Example:
    """Draw a problem of the kinds times, plus, minus."""
    kind, name = rng.choice(("times", "plus", "minus")), rng.choice(NAMES)
    box = rng.choice(tuple(BOXES))
    thing, a, b = BOXES[box], rng.choice(NUMBERS), rng.choice(NUMBERS)
    if kind == "times":
        user = f"{name} has {a} {box}. There are {b} {thing} in each of the {box}. How many {thing} does {name} have?"
        steps = f"{name} has {a} {box}.\nEach of the {box} holds {b} {thing}.\n{a} * {b} = {a * b}\n\n"
        result = a * b
    elif kind == "plus":
        user = f"{name} has {a} {thing} and buys {b} more {thing}. How many {thing} does {name} have now?"
        steps = f"At first, {name} has {a} {thing}.\nThen {name} buys {b} more {thing}.\n{a} + {b} = {a + b}\n\n"
        result = a + b
    else:
        total = a + b
        user = f"{name} has {total} {thing} and gives {b} {thing} to a friend. How many {thing} are left?"
        steps = f"At first, {name} has {total} {thing}.\n{name} gives away {b} {thing}.\n{total} - {b} = {a}\n\n"
        result = a
    return Example(TASK, user, f"{steps}The answer is {result}.", (f"{kind}/{a}/{b}",))


def keys() -> list[str]:
    """All slot combinations, in a fixed order."""
    return [f"{kind}/{a}/{b}" for kind in ("times", "plus", "minus") for a in NUMBERS for b in NUMBERS]
