"""Summaries of a short text about a place. Names of places (city and kind) are held out."""

from random import Random

from training.generators import places
from training.generators.example import Example

TASK = "summarisation"

REQUESTS: tuple[str, ...] = (
    "Summarise this text in two sentences.\n\n{text}",
    "{text}\n\nPlease give a short summary of the text above.",
    "Give me the main points of this text:\n\n{text}",
)

keys = places.keys


def example(rng: Random) -> Example:
    """Draw a text and its summary; the third way of asking wants a list."""
    place = places.draw(rng)
    index = rng.randrange(len(REQUESTS))
    user = REQUESTS[index].format(text=places.passage(place))
    if index < 2:
        answer = (
            f"The {place.name} was built in {place.year} and is made of {place.material}. "
            f"It is famous for {place.specialty}, and most people visit it in {place.season}."
        )
    else:
        answer = (
            f"Main points of the text:\n\n- The {place.name} was built in {place.year} by {place.builder}.\n"
            f"- It is made of {place.material}.\n- It is famous for {place.specialty}.\n"
            f"- Most people visit it in {place.season}."
        )
    return Example(TASK, user, answer, (place.key,))
