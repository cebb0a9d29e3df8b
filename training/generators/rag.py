"""Questions about a quoted passage. Names of places (city and kind) are held out."""

from random import Random

from training.generators import places
from training.generators.example import Example

TASK = "rag"

keys = places.keys


def example(rng: Random) -> Example:
    """Draw a passage of one or two places and a question about one of them."""
    shown = [places.draw(rng) for _ in range(rng.choice((1, 1, 2)))]
    subject = rng.choice(shown)
    question, answer = rng.choice(
        (
            (f"When was the {subject.name} built?", f"The {subject.name} was built in {subject.year}."),
            (f"Who built the {subject.name}?", f"The {subject.name} was built by {subject.builder}."),
            (f"What is the {subject.name} made of?", f"The {subject.name} is made of {subject.material}."),
            (f"When do people visit the {subject.name}?", f"Most people visit the {subject.name} in {subject.season}."),
            (f"What is the {subject.name} famous for?", f"The {subject.name} is famous for {subject.specialty}."),
        )
    )
    text = "\n\n".join(f"[{number}] {places.passage(place)}" for number, place in enumerate(shown, start=1))
    user = f"Answer with the help of the passage.\n\n{text}\n\nQuestion: {question}"
    source = shown.index(subject) + 1
    return Example(TASK, user, f"{answer} This is written in passage [{source}].", tuple(place.key for place in shown))
