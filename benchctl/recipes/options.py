"""An adapter's lists of its engine's options: those that open the machine, only read a file, or do neither."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CODE = "runs code"
FILES = "reads or writes files other than the models"
NETWORK = "reaches the network"
LIBRARIES = "loads libraries"


@dataclass(frozen=True)
class OptionList:
    """The known options of one engine, by their long names without dashes."""

    opens: Mapping[str, str] = field(default_factory=dict)
    """Options that open the machine, and how."""
    reads: frozenset[str] = frozenset()
    """Options that read a file, which passes where the file is inside the recipe's folder."""
    inline: frozenset[str] = frozenset()
    """Those of them that also take the text itself, such as a template, in place of the file that holds it."""
    harmless: frozenset[str] = frozenset()
    """Options that were checked and do none of it."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names, with the long one that each stands for."""
    abbreviated: bool = False
    """Whether the engine takes the beginning of an option for the option."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Patterns of the engine's own environment variables, and how each opens the machine."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Keys of `engine` that open the machine when they are set, and how."""
    speculation: Mapping[str, str] = field(default_factory=dict)
    """Types and keys of `speculation` that open the machine, and how."""
