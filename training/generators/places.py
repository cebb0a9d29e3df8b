"""Invented places with invented facts, shared by the question-answering and the summarisation generator."""

from dataclasses import dataclass
from random import Random

CITIES: tuple[str, ...] = (
    "Nara", "Sendai", "Otaru", "Kobe", "Matsue", "Niigata", "Kochi", "Hakata", "Nagano", "Akita", "Toyama", "Beppu",
    "Mito", "Gifu", "Tottori", "Saga",
)  # fmt: skip
KINDS: tuple[str, ...] = (
    "Bridge", "Museum", "Library", "Castle", "Garden", "Station", "Tower", "Market", "School", "Theater", "Harbor",
    "Hospital",
)  # fmt: skip
BUILDERS: tuple[str, ...] = (
    "a young engineer", "a group of farmers", "a rich merchant", "the city council", "two brothers", "an old teacher",
    "a railway company", "a famous artist",
)  # fmt: skip
MATERIALS: tuple[str, ...] = ("red brick", "white stone", "cedar wood", "black iron", "grey concrete", "green glass")
SEASONS: tuple[str, ...] = ("spring", "summer", "autumn", "winter")
SPECIALTIES: tuple[str, ...] = (
    "its quiet pond", "its old clock", "its wide roof", "its bright lamps", "its tall gate", "its long stairs",
    "its music festival", "its flower show",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A place and its facts; `name` is city and kind, the slot pair that is held out."""

    city: str
    kind: str
    year: int
    builder: str
    material: str
    season: str
    specialty: str
    visitors: int

    @property
    def name(self) -> str:
        """Its full name."""
        return f"{self.city} {self.kind}"

    @property
    def key(self) -> str:
        """Its slot combination."""
        return f"{self.city}/{self.kind}"


def draw(rng: Random) -> Place:
    """Draw a place."""
    return Place(
        rng.choice(CITIES),
        rng.choice(KINDS),
        rng.randrange(1850, 2000),
        rng.choice(BUILDERS),
        rng.choice(MATERIALS),
        rng.choice(SEASONS),
        rng.choice(SPECIALTIES),
        100 * rng.randrange(2, 90),
    )


def passage(place: Place) -> str:
    """The five sentences that tell a place's facts."""
    return (
        f"The {place.name} was built in {place.year} by {place.builder}. It is made of {place.material}. "
        f"Most people visit it in {place.season}. It is famous for {place.specialty}. "
        f"About {place.visitors} people come every week."
    )


def keys() -> list[str]:
    """All slot combinations, in a fixed order."""
    return [f"{city}/{kind}" for city in CITIES for kind in KINDS]
