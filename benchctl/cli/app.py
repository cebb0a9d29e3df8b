"""The program: its commands, its version, and how every error is printed.

Command modules are imported here, so they import nothing heavy at their top: `benchctl --help` must stay instant.
"""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sys
import warnings
from typing import Annotated, NoReturn, TextIO

import typer

from benchctl import __version__
from benchctl.cli.baseline import app as baseline
from benchctl.cli.breakeven import breakeven
from benchctl.cli.certify import certify
from benchctl.cli.compare import bisect, compare
from benchctl.cli.demo import demo
from benchctl.cli.diagnose import diagnose
from benchctl.cli.docs import docs
from benchctl.cli.engines import app as engines
from benchctl.cli.explain import explain
from benchctl.cli.isolate import isolate
from benchctl.cli.models import app as models
from benchctl.cli.predict import predict
from benchctl.cli.prompts import app as prompts
from benchctl.cli.recipes import app as recipes
from benchctl.cli.report import report
from benchctl.cli.run import run
from benchctl.cli.runs import app as runs
from benchctl.cli.schedule import schedule
from benchctl.cli.show_engine_line import TakesEngineLines
from benchctl.cli.tune import tune
from benchctl.cli.verify_against import verify_against
from benchctl.cli.verify_lossless import verify_lossless
from benchctl.cli.verify_sampling import verify_sampling
from benchctl.cli.verify_stress import verify_stress
from benchctl.errors import BenchctlError, StorageError

ABOUT = (
    "Does speculative decoding pay on your machine, and is the output unchanged?\n\n"
    "A recipe names models, prompts and arms. An arm is a setting of speculation: how a draft guesses tokens that the"
    " target verifies. Type first: benchctl demo"
)
EPILOG = (
    "Exit codes: 0 done (and lossless) · 1 not lossless, or a gate failed or cannot tell"
    " · 2 recipe or command line is wrong · 3 an engine failed · 4 files cannot be written or read"
    " · 70 benchctl's own error · 130 interrupted."
)

app = typer.Typer(
    name="benchctl",
    help=ABOUT,
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"benchctl {__version__}")
        raise typer.Exit


@app.callback()
def benchctl(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Read the options of the program itself."""


for panel, commands in {
    "Measure": (demo, run, tune, diagnose, isolate),
    "Judge": (
        verify_lossless,
        verify_sampling,
        verify_stress,
        verify_against,
        report,
        compare,
        bisect,
        explain,
        breakeven,
        predict,
    ),
}.items():
    for command in commands:
        app.command(rich_help_panel=panel, cls=TakesEngineLines if command is run else None)(command)
models.add_typer(prompts, name="prompts")
runs.command()(certify)
runs.command()(schedule)
for name, group in (("models", models), ("recipes", recipes), ("engines", engines)):
    app.add_typer(group, name=name, rich_help_panel="Prepare")
for name, group in (("runs", runs), ("baseline", baseline)):
    app.add_typer(group, name=name, rich_help_panel="Keep")
app.command(rich_help_panel="Prepare")(docs)


def main() -> None:
    """Run the command line; every error that a user can act on is a message and a documented exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character still gets the rest
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # Python's own flush comes too late to say what went wrong
    except BenchctlError as error:
        _fail(error)
    except KeyboardInterrupt as interrupt:
        _interrupted(interrupt)
    except BrokenPipeError:
        _reader_gone()
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # rich and typer make it a 1: not lossless
            _reader_gone()
        if isinstance(leaving.__context__, typer.Abort):  # Ctrl-C or Ctrl-D at a question: it says "Aborted."
            sys.exit(130)
        if leaving.__context__ is not None and isinstance(leaving.__context__.__cause__, KeyboardInterrupt):
            _interrupted(leaving.__context__.__cause__)
        raise
    except MemoryError:
        raise  # what starts the program says so, with what needs no more memory
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            fix = "Raise the limit: ulimit -n 1024"
            _fail(StorageError("More files are open than this shell allows.", fix=fix))
        if error.errno == errno.ENOMEM:
            raise MemoryError from error
        _discard(sys.stdout)
        where = "the output" if error.filename is None else str(error.filename)
        _fail(StorageError(f"It cannot be written or read: {error.strerror or error}.", where=where))
    except Exception as error:
        if _WITHOUT_MEMORY.search(str(error)):
            raise MemoryError from error
        if _CUT_OFF.search(str(error)) or isinstance(error.__cause__, KeyboardInterrupt):
            _interrupted(KeyboardInterrupt())
        from benchctl.cli.show_error import internal_error

        _fail(internal_error(error))


def _fail(error: BenchctlError) -> NoReturn:
    from benchctl.cli.show_error import show_error

    show_error(error)
    sys.exit(error.exit_code)


_WITHOUT_MEMORY = re.compile("failed to map segment|annot allocate memory|can't start new thread")
"""What the dynamic loader and the thread library say."""
_CUT_OFF = re.compile(r"\bKeyboardInterrupt: *\.?\s*\Z")
"""How pydantic's error ends when Ctrl-C came while pydantic built a schema: it has Ctrl-C's error as text only."""


def _interrupted(interrupt: KeyboardInterrupt) -> NoReturn:
    """Exit as a program does that Ctrl-C ended, with a line: what the command says of it, such as how to go on."""
    from benchctl.text import one_line

    warnings.simplefilter("ignore")  # nothing awaits, or can close, what Ctrl-C left half made, as an event loop
    sys.unraisablehook = lambda lost: None
    sys.stderr.write(f"{one_line(str(interrupt)) or 'Interrupted.'}\n")
    sys.exit(130)


def _reader_gone() -> NoReturn:
    """Exit as a program does whose reader has closed the pipe: `benchctl … | head`."""
    _discard(sys.stdout, sys.stderr)
    sys.exit(128 + signal.SIGPIPE)


def _discard(*streams: TextIO) -> None:
    """Let what is still buffered go nowhere, so that the flush at Python's end does not fail once more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())
