"""The target alone, reading an answer again in the steps it was made in: llama-replay (`replay.cpp`) and its command.

Numeric noise is a function of the batch: the same tokens in the same batches give the same bits. llama-replay takes the
server's command line and libraries, so that only the batches are left to repeat, and the record has those.
"""

from __future__ import annotations

import json
import math
import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchctl.engines.base import Launch, Rendered
from benchctl.engines.common.launched_server import StartUp
from benchctl.engines.common.log import READ_THE_LOG, log_tail, name_log
from benchctl.engines.common.process import EngineProcess, describe_exit, make_access
from benchctl.engines.common.wire import protocol_error
from benchctl.engines.llama_cpp.causes import launch_cause
from benchctl.engines.llama_cpp.command import slots_of, value_of
from benchctl.engines.llama_cpp.probe import Flags
from benchctl.engines.llama_cpp.requests import LAST_TOKENS, constraints
from benchctl.engines.llama_cpp.spec_flags import requested_of
from benchctl.engines.scoring import ReplayedToken
from benchctl.errors import EngineError
from benchctl.models.gguf_facts import experts_of
from benchctl.models.gguf_header import read_header
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.options import IS_OPTION
from benchctl.recipes.schema import GREEDY, PENALTIES, Sampling
from benchctl.text import one_line

SOCKET_VARIABLE = "LLAMA_REPLAY_SOCKET"
READS_TARGET = frozenset({"draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"})
"""Types whose head reads the target's hidden states, which changes the target's graph and how far it can go back."""
_LONGEST_OF_EXPERTS = 6
"""ggml's CPU code takes its tiled kernel from 8 rows of an expert on (`ggml_tiled_min_batch` in tiled.cpp)."""
_POLL_S = 0.05
_LONGEST_LINE = 2**26


def unreplayable(launch: Launch, flags: Flags, devices: Sequence[str]) -> str | None:
    """Return why answers of a command line cannot be replayed, as the end of a sentence; `None` where they can be."""
    if launch.overlapping or slots_of(launch.argv) > 1:
        return "several requests at a time share its batches, and which did is in no log"
    if any(word in launch.argv for word in flags.all_names("--backend-sampling")):
        return "with --backend-sampling the target returns no logits"
    experts = experts_of(read_header(Path(value_of(launch.argv, flags.all_names("--model")) or "")))
    on_cpu = not devices or value_of(launch.argv, flags.all_names("--gpu-layers")) == "0"
    if experts and not (on_cpu and _longest_draft(launch, flags) <= _LONGEST_OF_EXPERTS):
        return (
            "rejected drafts, which are in no log, decide how many tokens share an expert's matrix product, and with "
            f"it the kernel (on a CPU from drafts of {_LONGEST_OF_EXPERTS + 1} tokens on)"
        )
    return None


def _longest_draft(launch: Launch, flags: Flags) -> float:
    """Return the longest draft that a command line allows a model; of look-ups it is not read."""
    types = requested_of(launch.argv, flags).types
    if not all(name.startswith("draft-") for name in types):
        return math.inf
    limit = flags.get("--spec-draft-n-max")
    written = value_of(launch.argv, limit.names if limit else ())
    return float(written or (limit and limit.default) or math.inf) if types else 0.0


def target_launch(launch: Launch, flags: Flags) -> Launch:
    """Return the launch without its speculation, unless a head of that reads the target's hidden states."""
    if not READS_TARGET.isdisjoint(requested_of(launch.argv, flags).types):
        return launch
    kept, of_draft = [launch.argv[0]], False
    for word in launch.argv[1:]:
        if IS_OPTION.match(word):
            of_draft = any("spec-" in name or "draft" in name for name in flags.all_names(word))
        if not of_draft:
            kept.append(word)
    return Launch(tuple(kept), launch.env, launch.set_by_us, overlapping=launch.overlapping)


def sampling_args(sampling: Sampling) -> list[str]:
    """Return the flags that set what requests set with `sampling`."""
    args = ["--samplers", ";".join(sampling.chain), "--temp", repr(sampling.temperature)]
    args += ["--top-k", str(sampling.top_k), "--top-p", repr(sampling.top_p), "--seed", str(sampling.seed)]
    settings = constraints(sampling)
    for token, bias in settings.pop("logit_bias", []):
        args += ["--logit-bias", f"{token}{bias:+}"]
    for key, value in settings.items():
        args += [f"--{key.replace('_', '-')}", str(value)]
    return [*args, *(["--ignore-eos"] if sampling.ignore_eos else [])]


class LlamaReplayer:
    """A running llama-replay; see `benchctl.engines.scoring.Replayer`."""

    def __init__(
        self,
        program: Path,
        launch: Launch,
        log_path: Path,
        spec: LaunchedEngineSpec,
        evidence: str,
        sampling: Sampling = GREEDY,
    ) -> None:
        """Start `program` with the arguments of `launch`, which set `sampling`, and wait until it is ready.

        Raises EngineError.
        """
        self._sampling = sampling
        self._command = (str(program), *launch.command(0)[1:])
        self.evidence, self._timeout_s, self._unread = evidence, spec.request_timeout_s, b""
        access = make_access(by_socket=True)
        if access.socket_path is None:
            raise EngineError(
                "llama-replay is reached by a Unix socket, and none can be made here.",
                kind="launch",
                where=str(access.folder),
                fix="Set TMPDIR to a folder with a short path.",
            )
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(access.socket_path))
            listening.listen(1)
            env = {**launch.env, SOCKET_VARIABLE: str(access.socket_path)}
            self._process = EngineProcess(self._command, env, log_path, access)
            try:
                start_up = StartUp(self._process, spec.health_timeout_s, launch_cause, _POLL_S)
                while not select.select([listening], [], [], 0)[0]:
                    start_up.wait_a_moment()
                self._socket, _ = listening.accept()
                self._socket.settimeout(self._timeout_s)
                while not select.select([self._socket], [], [], 0)[0]:
                    start_up.wait_a_moment()
                self.commit = str(self._read().get("commit"))
            except BaseException:
                self._process.stop()
                raise

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that runs."""
        return self._command

    def replay(self, prompt: Rendered, answer: Sequence[int], steps: Sequence[Sequence[int]]) -> list[ReplayedToken]:
        """Read an answer in its steps; return every token that the target does not choose. Raises EngineError."""
        request: dict[str, Any] = {
            "prompt": prompt.token_ids,
            "answer": list(answer),
            "steps": [list(step) for step in steps],
        }
        request |= prompt.settings
        if prompt.sampling:
            sampling = self._sampling.model_copy(update=prompt.sampling)
            request |= {key: getattr(sampling, key) for key in PENALTIES}  # also what they switch off
            request |= {"repeat_last_n": LAST_TOKENS, "samplers": sampling.chain, "seed": sampling.seed}
            request |= {"logit_bias": []} | constraints(sampling)
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise self._broken() from error
        result = self._read()
        try:
            return [_token(entry, len(answer)) for entry in result["tokens"]]
        except (KeyError, TypeError, ValueError) as error:
            raise protocol_error("llama-replay did not return the tokens that differ.") from error

    def _read(self) -> dict[str, Any]:
        """Return the next line. Raises EngineError."""
        deadline = time.monotonic() + self._timeout_s
        while b"\n" not in self._unread:
            try:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
                block = self._socket.recv(2**16)
            except TimeoutError:
                message = f"llama-replay did not answer within {self._timeout_s:g} s"
                raise EngineError(message, kind="timeout", fix="Raise engine.request_timeout_s.") from None
            except OSError as error:
                raise self._broken() from error
            if not block:
                raise self._broken()
            self._unread += block
            if len(self._unread) > _LONGEST_LINE:
                raise protocol_error("llama-replay answers without end.")
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            result = json.loads(line)
        except ValueError:
            result = None
        if not isinstance(result, dict):
            raise protocol_error("llama-replay answered with something other than JSON.")
        if "error" in result:
            raise EngineError(f"llama-replay: {one_line(str(result['error']), 300)}", kind="protocol")
        return result

    def _broken(self) -> EngineError:
        self._process.wait(2.0)
        reason = f"llama-replay ended with {describe_exit(self._process.status)}"
        log = self._process.log_path
        return EngineError(reason, kind="crash", fix=name_log(READ_THE_LOG, log), log_tail=log_tail(log))

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The last log lines, oldest first, cleaned."""
        return log_tail(self._process.log_path, lines)

    def stop(self) -> int | None:
        """End the process. Safe to call twice."""
        self._socket.close()
        return self._process.stop()


def _token(entry: Sequence[Any], answer: int) -> ReplayedToken:
    """Read [index, likeliest, gap]. Raises ValueError, TypeError."""
    index, likeliest, gap = entry
    if type(index) is not int or type(likeliest) is not int or not 0 <= index < answer or likeliest < 0:
        raise ValueError(entry)
    return ReplayedToken(index, likeliest, None if gap is None else float(gap))


def start_replayer(
    program: Path, launch: Launch, log_path: Path, spec: LaunchedEngineSpec, sampling: Sampling, commit: str | None
) -> LlamaReplayer:
    """Start `program` as the target of `launch`. Raises EngineError (`launch`, `health`)."""
    command = Launch((*launch.argv, *sampling_args(sampling)), launch.env)
    evidence = f"llama-replay with the command line and the libraries of the measured llama-server, commit {commit}"
    replayer = LlamaReplayer(program, command, log_path, spec, evidence, sampling)
    if not commit or not commit.startswith(replayer.commit[:7]):
        replayer.stop()
        raise EngineError(
            f"llama-replay is of commit {replayer.commit}, and llama-server of {commit}",
            kind="launch",
            where=str(program),
            fix="Build both from the same source.",
        )
    return replayer
