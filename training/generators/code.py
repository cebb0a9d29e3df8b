"""Small Python functions and classes; operation-condition and class-method pairs are held out."""

from random import Random

from training.generators.example import Example

TASK = "code"

# operation -> (phrase, start value, update of `result` with `value`)
OPERATIONS: dict[str, tuple[str, str, str]] = {
    "sum": ("the sum of", "0", "result += {value}"),
    "count": ("the number of", "0", "result += 1"),
    "list": ("a list of", "[]", "result.append({value})"),
    "product": ("the product of", "1", "result *= {value}"),
    "largest": ("the largest of", "None", "result = {value} if result is None else max(result, {value})"),
    "smallest": ("the smallest of", "None", "result = {value} if result is None else min(result, {value})"),
    "last": ("the last of", "None", "result = {value}"),
    "set": ("the set of", "set()", "result.add({value})"),
    "squares": ("the sum of the squares of", "0", "result += {value} ** 2"),
    "doubles": ("a list of the doubles of", "[]", "result.append(2 * {value})"),
}

# condition -> (word in the name, phrase before the noun, phrase after the noun, test); {n} is a small number
CONDITIONS: dict[str, tuple[str, str, str, str]] = {
    "even": ("even", "even ", "", "{value} % 2 == 0"),
    "odd": ("odd", "odd ", "", "{value} % 2 == 1"),
    "positive": ("positive", "positive ", "", "{value} > 0"),
    "negative": ("negative", "negative ", "", "{value} < 0"),
    "above": ("above_{n}", "", " greater than {n}", "{value} > {n}"),
    "below": ("below_{n}", "", " less than {n}", "{value} < {n}"),
    "divisible": ("divisible_by_{n}", "", " divisible by {n}", "{value} % {n} == 0"),
    "not_divisible": ("not_divisible_by_{n}", "", " not divisible by {n}", "{value} % {n} != 0"),
    "equal": ("equal_to_{n}", "", " equal to {n}", "{value} == {n}"),
    "different": ("different_from_{n}", "", " different from {n}", "{value} != {n}"),
    "at_least": ("at_least_{n}", "", " that are at least {n}", "{value} >= {n}"),
    "nonzero": ("nonzero", "nonzero ", "", "{value} != 0"),
}

NOUNS: dict[str, str] = {
    "numbers": "number",
    "prices": "price",
    "scores": "score",
    "ages": "age",
    "weights": "weight",
    "points": "point",
    "lengths": "length",
    "values": "value",
    "sizes": "size",
    "amounts": "amount",
    "grades": "grade",
    "temperatures": "temperature",
}

# class -> (name of the item it holds, plural)
CLASSES: dict[str, tuple[str, str]] = {
    "Library": ("book", "books"),
    "Basket": ("fruit", "fruits"),
    "Team": ("player", "players"),
    "Garden": ("flower", "flowers"),
    "Playlist": ("song", "songs"),
    "Menu": ("dish", "dishes"),
    "Garage": ("car", "cars"),
    "School": ("student", "students"),
    "Album": ("photo", "photos"),
    "Toolbox": ("tool", "tools"),
}

# method -> (phrase in the request, signature, docstring, body lines)
METHODS: dict[str, tuple[str, str, str, str]] = {
    "count": (
        "returns how many {many} there are",
        "count(self)",
        "Return the number of {many}.",
        "return len(self.{many})",
    ),
    "has": (
        "tells whether it holds a {one}",
        "has(self, {one})",
        "Return True if the {one} is there.",
        "return {one} in self.{many}",
    ),
    "first": ("returns the first {one}", "first(self)", "Return the first {one}.", "return self.{many}[0]"),
    "ordered": (
        "returns the {many} in order",
        "ordered(self)",
        "Return the {many} in order.",
        "return sorted(self.{many})",
    ),
    "remove": ("removes a {one}", "remove(self, {one})", "Remove the {one}.", "self.{many}.remove({one})"),
    "clear": ("removes all {many}", "clear(self)", "Remove all {many}.", "self.{many} = []"),
    "show": (
        "prints every {one}",
        "show(self)",
        "Print every {one}.",
        "for {one} in self.{many}:\n            print({one})",
    ),
    "longest": (
        "returns the longest {one} name",
        "longest(self)",
        "Return the longest {one} name.",
        "return max(self.{many}, key=len)",
    ),
}

FUNCTION_REQUESTS: tuple[str, ...] = (
    "Write a Python function `{name}` that returns {phrase}.",
    "Please write a Python function called `{name}`. It should return {phrase}.",
    "Implement `{name}({many})` in Python so that it returns {phrase}.",
)

CLASS_REQUESTS: tuple[str, ...] = (
    "Write a Python class `{name}` that holds {many}, with a method `add` and a method `{method}` that {phrase}.",
    "Implement a class `{name}` in Python. It stores {many}, has a method `add`, and its method `{method}` {phrase}.",
)


def function(rng: Random, operation: str, condition: str) -> Example:
    """A function that folds the items of a list that meet a condition."""
    many = rng.choice(tuple(NOUNS))
    singular, n = NOUNS[many], rng.randrange(2, 30)
    op_phrase, start, update = OPERATIONS[operation]
    word, before, after, test = (text.format(n=n, value=singular) for text in CONDITIONS[condition])
    name = f"{operation}_of_{word}_{many}" if before else f"{operation}_of_{many}_{word}"
    phrase = f"{op_phrase} the {before}{many}{after}"
    user = rng.choice(FUNCTION_REQUESTS).format(name=name, many=many, phrase=phrase)
    body = (
        f"```python\ndef {name}({many}):\n"
        f'    """Return {phrase}."""\n'
        f"    result = {start}\n"
        f"    for {singular} in {many}:\n"
        f"        if {test}:\n"
        f"            {update.format(value=singular)}\n"
        f"    return result\n```\n\n"
    )
    prose = f"The function goes through all {many} and keeps {phrase}."
    return Example(TASK, user, body + prose, (f"{operation}/{condition}",))


def klass(rng: Random, name: str, method: str) -> Example:
    """A class that holds items of one kind and has one more method beside `add`."""
    singular, plural = CLASSES[name]
    phrase, signature, docstring, code = (text.format(one=singular, many=plural) for text in METHODS[method])
    article = "An" if name.startswith("A") else "A"
    user = rng.choice(CLASS_REQUESTS).format(name=name, many=plural, method=method, phrase=phrase)
    body = (
        f"```python\nclass {name}:\n"
        f'    """{article} {name.lower()} that holds {plural}."""\n\n'
        f"    def __init__(self):\n        self.{plural} = []\n\n"
        f"    def add(self, {singular}):\n"
        f'        """Add a {singular}."""\n'
        f"        self.{plural}.append({singular})\n\n"
        f"    def {signature}:\n"
        f'        """{docstring}"""\n'
        f"        {code}\n```\n\n"
    )
    prose = f"The class `{name}` keeps its {plural} in a list. The method `{method}` {phrase}."
    return Example(TASK, user, body + prose, (f"{name}/{method}",))


def example(rng: Random) -> Example:
    """Draw a function (four of five) or a class."""
    if rng.random() < 0.8:
        return function(rng, rng.choice(tuple(OPERATIONS)), rng.choice(tuple(CONDITIONS)))
    return klass(rng, rng.choice(tuple(CLASSES)), rng.choice(tuple(METHODS)))


def keys() -> list[str]:
    """All slot combinations, in a fixed order."""
    functions = [f"{operation}/{condition}" for operation in OPERATIONS for condition in CONDITIONS]
    return functions + [f"{name}/{method}" for name in CLASSES for method in METHODS]
