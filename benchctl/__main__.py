"""Starting the program, as `benchctl` and as `python -m benchctl`.

Until the commands are imported, and again once they have ended, nothing is there that an interrupt could spoil: Ctrl-C
then ends the process at once, where Python would show a traceback of whatever it was importing.
"""

import _signal as signal  # type: ignore[import-not-found]  # built in: `signal` imports more, and Ctrl-C may come then
import os
import sys


def _end_at_once(number: int, frame: object) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(128 + number)


def _interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Have Ctrl-C take effect that came while C code ran that cannot raise, as pydantic's does: it would be lost."""
    import _thread
    import threading

    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Timer(0.02, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(lost)


def _unless_ignored(handler: object) -> None:
    """Let `handler` take Ctrl-C, unless the shell has it ignored, as it does in the background."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


_NO_MEMORY = (
    b"error: There is not enough memory for benchctl itself, which needs 512 MB.\n"
    b"  Close programs that use much memory, or raise this shell's limit: ulimit -v unlimited\n"
)
_THREADS = "OPENBLAS_NUM_THREADS"
_ENOUGH = 512 * 10**6  # the libraries take 140 MB; what a run takes beside them comes on top


def _loaded_under_limit() -> bool:
    """Whether the libraries are loaded, or may be later since this shell does not limit memory.

    Where memory is short, numpy's library for matrices (OpenBLAS) ends the process with 1, which would say "not
    lossless", or tries for ever. It wants a stack of 8 MB for each core: under a limit it gets one thread.
    """
    import resource

    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    limits = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    if not limits:
        return True
    if min(limits) < _ENOUGH:
        return False
    users = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    import scipy.linalg  # noqa: F401

    del os.environ[_THREADS]  # engines take it over
    if users is not None:
        os.environ[_THREADS] = users
    return True


def main() -> None:
    """Run the command line."""
    _unless_ignored(_end_at_once)
    try:
        if not _loaded_under_limit():
            raise MemoryError
        from benchctl.cli.app import main as run

        sys.unraisablehook = _interrupt_again
        _unless_ignored(signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except MemoryError:
        os.write(2, _NO_MEMORY)
        sys.exit(70)
    finally:
        _unless_ignored(_end_at_once)


if __name__ == "__main__":
    main()
