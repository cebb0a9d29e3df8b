"""Questions about a quoted passage. Names of places (city and kind) are held out."""

from random import Random

from training.generators import places
from training.generators.example import Example

TASK = "rag"

keys = places.keys


def example(rng: Random) -> Example:
    """Draw a passage of one or two places and a question about one of them."""
    shown = [places.draw(rng) for _ in range(rng.choice((1, 1, 2)))]
    asked = rng.choice(shown)
    question, answer = rng.choice(
        (
            (f"When was the {asked.name} built?", f"The {asked.name} was built in {asked.year}."),
            (f"Who built the {asked.name}?", f"The {asked.name} was built by {asked.builder}."),
            (f"What is the {asked.name} made of?", f"The {asked.name} is made of {asked.material}."),
            (f"When do people visit the {asked.name}?", f"Most people visit the {asked.name} in {asked.season}."),
            (f"What is the {asked.name} famous for?", f"The {asked.name} is famous for {asked.specialty}."),
        )
    )
    text = "\n\n".join(f"[{number}] {places.passage(place)}" for number, place in enumerate(shown, start=1))
    user = f"Answer with the help of the passage.\n\n{text}\n\nQuestion: {question}"
    source = shown.index(asked) + 1
    return Example(TASK, user, f"{answer} This is written in passage [{source}].", tuple(place.key for place in shown))
