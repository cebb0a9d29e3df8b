"""The list of what options do to the machine is held against the options that the real binary has."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.engines.llama_cpp.adapter import OPTIONS
from benchctl.engines.llama_cpp.command import _RESERVED
from benchctl.engines.llama_cpp.probe import probe_server

pytestmark = pytest.mark.engine


def test_every_option_of_the_real_server_is_on_a_list(llama_server: Path) -> None:
    flags = probe_server(llama_server, "test").flags
    reserved = {name.lstrip("-") for name in _RESERVED}
    known = {*OPTIONS.opens, *OPTIONS.reads, *OPTIONS.harmless, *OPTIONS.aliases, *reserved}
    unknown = []
    for flag in flags.all:
        names = [name.lstrip("-").removeprefix("no-") for name in flag.names]
        if not flag.removed and not known & set(names):
            unknown.append(flag.names)
    assert not unknown


def test_no_option_that_opens_the_machine_is_called_harmless() -> None:
    assert not OPTIONS.harmless & (OPTIONS.opens.keys() | OPTIONS.reads)
    opening = {short for short, option in OPTIONS.aliases.items() if option in OPTIONS.opens.keys() | OPTIONS.reads}
    assert not OPTIONS.harmless & opening
