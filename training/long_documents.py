"""Write the `long_context` task of `prompts/workloads.json`: long invented records, each with a question over all.

python -m training.long_documents prompts/workloads.json

The documents are not training text; they are made here because a record with many entries is easier to check than to
write by hand.
"""

import argparse
import json
from pathlib import Path
from random import Random

MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


def lighthouse_diary(rng: Random) -> str:
    """A keeper's diary; asks for one pattern."""
    winds = ("north", "north-west", "west", "south-west", "south", "east")
    ships = (
        "the collier Margaret",
        "the schooner Ebba",
        "the mail steamer",
        "a trawler without lights",
        "the pilot boat",
    )
    duties = (
        "cleaned the lamp glass", "painted the railing", "mended the boat shed", "counted the stores",
        "oiled the clockwork", "carried coal from the landing", "dried the flags",
    )  # fmt: skip
    remarks = (
        "The gulls sit low, which my father took for a sign of rain.",
        "Supper was herring again, and nobody complained.",
        "Johan's cough is better.",
        "The barometer fell by four lines before noon.",
        "A letter came from the board, asking once more for last year's oil.",
        "Fog until ten, then a clear horizon.",
    )
    days = []
    for day in range(1, 31):
        wind, force = rng.choice(winds), rng.randrange(2, 10)
        sighting = rng.choice(ships) if rng.random() < 0.6 else "no ship"
        oil = rng.randrange(21, 34)
        days.append(
            f"{day} November. Wind {wind}, force {force}. Saw {sighting}. In the day we {rng.choice(duties)}. "
            f"The lamp burned {oil} pounds of oil. {rng.choice(remarks)}"
        )
    return (
        "Here is the diary of a lighthouse keeper for one month.\n\n"
        + "\n\n".join(days)
        + "\n\nOn which days was the wind of force 8 or more, what was seen on those days, and did the lamp burn more "
        "oil then than on the other days? Quote the entries that you use."
    )


def council_minutes(rng: Random) -> str:
    """A year of minutes; asks what became of each decision."""
    matters = (
        ("the footbridge at the mill", 18), ("new lamps in Church Lane", 9), ("a roof for the bus stop", 6),
        ("the flood wall", 64), ("books for the reading room", 3), ("repair of the school boiler", 22),
        ("a second well at the cemetery", 7), ("paint for the town hall", 11),
    )  # fmt: skip
    people = ("Mrs Adeyemi", "Mr Brandt", "Ms Castillo", "Mr Dunne", "Mrs Eriksen")
    decisions = ("go ahead at once", "ask for a second offer", "put the matter off", "pay half of the cost")
    minutes = []
    for month in MONTHS:
        first, second = rng.sample(matters, 2)
        mover, seconder = rng.sample(people, 2)
        members = rng.randrange(6, 10)
        votes = rng.randrange(members // 2 + 1, members + 1)
        minutes.append(
            f"{month}. Present: {members} members. {mover} reported on {first[0]}. The cost is now put at "
            f"{first[1] + rng.randrange(-2, 5)},000 euros. "
            f"{seconder} asked whether the work could wait until the next year. "
            f"After a discussion the council decided, with {votes} votes to {members - votes}, to "
            f"{rng.choice(decisions)}. "
            f"Under other business, {rng.choice(people)} spoke about {second[0]} and promised a paper for the next "
            f"meeting. The public asked {rng.choice(('two questions', 'one question', 'no questions'))} about parking. "
            f"The meeting closed at {rng.randrange(8, 11)} o'clock."
        )
    return (
        "These are the minutes of a small town council for one year.\n\n"
        + "\n\n".join(minutes)
        + "\n\nMake a table of every matter on which the council decided: month, matter, cost, decision. Then say "
        "which matters were decided more than once and how the decisions differ."
    )


def incident_log(rng: Random) -> str:
    """A service log; asks for the cause."""
    parts = ("checkout", "search", "login", "images", "mail")
    lines = []
    minute = 8 * 60
    for _ in range(110):
        minute += rng.randrange(1, 9)
        part = rng.choice(parts)
        late = minute > 13 * 60
        took = rng.randrange(900, 4000) if late and part in {"checkout", "search"} else rng.randrange(20, 260)
        level = "WARN" if took > 900 else "INFO"
        note = "waiting for database connection" if took > 900 else "ok"
        lines.append(f"{minute // 60:02d}:{minute % 60:02d} {level} {part}: request took {took} ms, {note}")
    lines.append("12:58 INFO deploy: version 5.2.1 of search is live (pool size 5, was 20)")
    return (
        "Below is a day's log of a web shop. Customers say that it became slow after lunch.\n\n"
        + "\n".join(sorted(lines))
        + "\n\nWhich parts became slow and since when? What is the most likely cause? Quote the lines that show it, "
        "and propose a first step and a lasting repair."
    )


def museum_catalogue(rng: Random) -> str:
    """A catalogue; asks for a selection."""
    objects = {
        "A water jar": 38, "An oil lamp": 14, "A weaving weight": 11, "A bronze pin": 8, "A glass bead": 2,
        "A bone comb": 9, "A stone axe": 16, "A cooking pot": 31,
    }  # fmt: skip
    rooms = ("the harbour quarter", "the west gate", "the potter's house", "the temple court", "a well in the market")
    states = ("complete", "broken but complete", "half preserved", "a fragment", "restored in 1962")
    entries = []
    for number in range(1, 37):
        thing, room, state = rng.choice(tuple(objects)), rng.choice(rooms), rng.choice(states)
        entries.append(
            f"No. {400 + number}. {thing}, {objects[thing] + rng.randrange(-1, 4)} cm, {state}. Found in {room} in "
            f"{rng.randrange(1951, 1979)}. Dated to the {rng.choice(('first', 'second', 'third', 'fourth'))} century. "
            f"Kept in cabinet {rng.choice('ABCDEF')}{rng.randrange(1, 9)}."
        )
    return (
        "This is a part of a museum's catalogue.\n\n"
        + "\n".join(entries)
        + "\n\nThe museum plans a small exhibition about daily life in the harbour quarter and the "
        "potter's house. Choose six objects that are not fragments, give their numbers and cabinets, and write one "
        "sentence for each label."
    )


def module_source(rng: Random) -> str:
    """A Python module; asks for a change across it."""
    shapes = {
        "circle": ("radius", "3.14159 * radius * radius"),
        "square": ("side", "side * side"),
        "cube_surface": ("edge", "6 * edge * edge"),
        "ring": ("outer, inner", "3.14159 * (outer * outer - inner * inner)"),
        "triangle": ("base, height", "base * height / 2"),
        "trapezoid": ("long, short, height", "(long + short) * height / 2"),
        "ellipse": ("major, minor", "3.14159 * major * minor"),
        "rhombus": ("first, second", "first * second / 2"),
        "cylinder_side": ("radius, height", "2 * 3.14159 * radius * height"),
        "sphere_surface": ("radius", "4 * 3.14159 * radius * radius"),
        "cone_side": ("radius, slant", "3.14159 * radius * slant"),
        "rectangle": ("width, height", "width * height"),
        "box_surface": ("width, height, depth", "2 * (width * height + height * depth + width * depth)"),
        "half_disc": ("radius", "3.14159 * radius * radius / 2"),
        "annular_path": ("radius, width", "3.14159 * ((radius + width) ** 2 - radius * radius)"),
        "hexagon": ("side", "2.598076 * side * side"),
        "stadium": ("radius, length", "3.14159 * radius * radius + 2 * radius * length"),
        "frame": ("width, height, border", "2 * border * (width + height - 2 * border)"),
    }
    order = list(shapes)
    rng.shuffle(order)
    functions = []
    for name in order:
        arguments, formula = shapes[name]
        checks = "".join(
            f"    if {argument} < 0:\n        raise ValueError('{argument} must not be negative')\n"
            for argument in arguments.split(", ")
        )
        functions.append(
            f'def area_of_{name}({arguments}):\n    """Return the area of a {name.replace("_", " ")}."""\n'
            f"{checks}    return {formula}\n"
        )
    return (
        "Here is a Python module.\n\n```python\n"
        + "\n\n".join(functions)
        + "```\n\nThe checks are repeated everywhere, and the value of pi is not exact. Rewrite the whole module: one "
        "function that does the checks, `math.pi` instead of the number, and type hints. Keep the names and the order "
        "of the functions."
    )


def shop_journal_ja(rng: Random) -> str:
    """A Japanese shop's journal; asks for a comparison of days."""
    weather = ("晴れ", "曇り", "雨", "雪", "晴れのち曇り")
    goods = ("大福", "どら焼き", "羊羹", "桜餅", "草餅", "最中")
    guests = (
        "常連の田村さんが孫を連れて来てくださった", "観光のお客様が多かった", "近くの学校から注文があった",
        "午後は静かだった", "電話での予約が三件あった", "隣の喫茶店から追加の注文が入った",
    )  # fmt: skip
    days = []
    for day in range(1, 32):
        best, second = rng.sample(goods, 2)
        visitors = rng.randrange(18, 96)
        days.append(
            f"3月{day}日（{'月火水木金土日'[day % 7]}）天気は{rng.choice(weather)}。お客様は{visitors}人。"
            f"一番売れたのは{best}で{rng.randrange(20, 90)}個、次は{second}で{rng.randrange(8, 20)}個。"
            f"売り上げは{visitors * rng.randrange(45, 90) * 10}円。{rng.choice(guests)}。"
            f"{rng.choice(('小豆を追加で仕入れた', '包み紙が残り少ない', '冷蔵庫の調子が悪い', '特に変わりはない'))}。"
        )
    return (
        "次は、ある和菓子屋の一か月の日誌です。\n\n"
        + "\n\n".join(days)
        + "\n\n雨や雪の日と晴れの日では、お客様の数と売り上げはどのくらい違いますか。根拠になる日を挙げて説明し、"
        "来月の仕入れについての提案を三つ書いてください。"
    )


WRITERS = (lighthouse_diary, council_minutes, incident_log, museum_catalogue, module_source, shop_journal_ja)


def main() -> None:
    """Replace the task in the suite."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    options = parser.parse_args()
    suite = json.loads(options.suite.read_text("utf-8"))
    suite["tasks"]["long_context"] = [
        {"messages": [{"role": "user", "content": write(Random(write.__name__))}]} for write in WRITERS
    ]
    options.suite.write_text(json.dumps(suite, ensure_ascii=False, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
