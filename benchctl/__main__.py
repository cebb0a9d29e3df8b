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


def _unless_ignored(handler: object) -> None:
    """Let `handler` take Ctrl-C, unless the shell has it ignored, as it does in the background."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


_NO_MEMORY = (
    b"error: There is not enough memory for benchctl itself.\n"
    b"  Close programs that use much memory, or raise this shell's limit: ulimit -v unlimited\n"
)


def _memory_suffices() -> bool:
    """Whether a process with a tenth less than this shell's limit of memory can load the libraries.

    Where one cannot, numpy's ends the process by itself: with 1, which would say "not lossless", or as Ctrl-C does.
    """
    import resource

    limits = {which: resource.getrlimit(which) for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)}
    if all(soft == resource.RLIM_INFINITY for soft, _ in limits.values()):
        return True
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for which, (soft, hard) in limits.items():
            if soft != resource.RLIM_INFINITY:
                resource.setrlimit(which, (soft * 9 // 10, hard))
        import benchctl.analysis.frame
        import benchctl.cli.app  # noqa: F401

        os._exit(0)
    finally:
        os._exit(70)


def main() -> None:
    """Run the command line."""
    _unless_ignored(_end_at_once)
    if not _memory_suffices():
        os.write(2, _NO_MEMORY)
        sys.exit(70)
    from benchctl.cli.app import main as run

    try:
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
