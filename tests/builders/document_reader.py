"""A reader of the documents in front of a checkout of their own, who types the blocks of a scenario as they stand.

See docs/decisions/0144-documents.md.
"""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import page_files
import pexpect
import yaml
from builders.control_plane import ControlPlane
from builders.documents import ROOT, SCENARIOS, not_typed, shell_blocks
from builders.local_jobs import PROGRAM
from pexpect.replwrap import PEXPECT_CONTINUATION_PROMPT, PEXPECT_PROMPT, REPLWrapper

_TYPED_SECONDS = 600
"""How long a command may take. A limit for defects, not an expectation."""
_CLOSE_SECONDS = 180

LONG = 1_000_000
"""Outer steps that no job reaches before it is told to end."""


class CommandRefused(Exception):
    """A command ended with another status than 0, or did not end. The message has what the terminal showed of it."""


class Shell:
    """An interactive bash in a terminal: with jobs in the background, and Ctrl-C."""

    def __init__(self, cwd: Path, environment: Mapping[str, str]) -> None:
        # Without colours, as wide as no line of a table is long, and with one prompt, whatever environment of Python is activated. Ctrl-C
        # works also where the tests were started without it, behind `&`.
        env = {**environment, "TERM": "xterm", "NO_COLOR": "1", "VIRTUAL_ENV_DISABLE_PROMPT": "1"}
        arguments = ["--norc", "--noprofile", "--noediting"]
        self._terminal = pexpect.spawn(
            "bash",
            arguments,
            cwd=cwd,
            env=env,
            echo=False,
            dimensions=(100, 250),
            timeout=_TYPED_SECONDS,
            encoding="utf-8",
            codec_errors="replace",
            preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
        # `!` and the end of a line are only themselves.
        prompts = f"PS1={PEXPECT_PROMPT!r} PS2={PEXPECT_CONTINUATION_PROMPT!r} PROMPT_COMMAND="
        self._bash = REPLWrapper(self._terminal, "[#$] ", prompts, extra_init_cmd="set +H; stty -onlcr")

    def type(self, command: str) -> str:
        """Type it, wait until it has ended with status 0, and give what the terminal showed of it. Raises `CommandRefused`."""
        try:
            shown: str = self._bash.run_command(command)
            status = re.search(r"status=(\d+)", self._bash.run_command("echo status=$?"))
        except (pexpect.TIMEOUT, pexpect.EOF) as error:
            raise CommandRefused(f"`{command}` did not end\n{self._terminal.before}") from error
        if status is None or status[1] != "0":
            raise CommandRefused(f"`{command}` ended with {status and status[1]}\n{shown}")
        return shown

    def type_until(self, command: str, text: str) -> str:
        """Type a command that does not end by itself, wait until the terminal shows the text (a regular expression), and press Ctrl-C."""
        self._terminal.sendline(command)
        try:
            if self._terminal.expect([text, re.escape(PEXPECT_PROMPT)]) == 1:
                raise CommandRefused(f"`{command}` ended and did not show {text!r}\n{self._terminal.before}")
            shown: str = self._terminal.before + self._terminal.after
            self._terminal.sendintr()
            self._terminal.expect_exact(PEXPECT_PROMPT)
        except (pexpect.TIMEOUT, pexpect.EOF) as error:
            raise CommandRefused(f"`{command}` did not show {text!r}, or did not end\n{self._terminal.before}") from error
        return shown + str(self._terminal.before)

    def close(self) -> None:
        """End the jobs, then the shell: it gets SIGHUP, also when the test's process dies, and hands it on to those that are left."""
        with contextlib.suppress(pexpect.TIMEOUT, pexpect.EOF, OSError):
            self._terminal.sendintr()
            self._bash.run_command("kill $(jobs -p) 2>/dev/null; wait", timeout=_CLOSE_SECONDS)
        self._terminal.close(force=True)


class Reader:
    """Follows a scenario: types its blocks as they stand."""

    def __init__(self, scenario: str, shell: Shell) -> None:
        self.shell = shell
        self._left = list(SCENARIOS[scenario])

    def type(self, name: str, until: Mapping[str, str] | None = None, *, all_of_it: bool = False) -> dict[str, str]:
        """The block of this name; what the terminal showed of each command. `until`: by the beginning of a command that does not end by
        itself, what its output must show (a regular expression) before Ctrl-C. `all_of_it`: the commands of NOT_TYPED as well, because
        something stands in for their programs."""
        self._left.remove(name)
        shown: dict[str, str] = {}
        for command in shell_blocks()[name].commands:
            if not all_of_it and not_typed(command):
                continue
            awaited = next((text for beginning, text in (until or {}).items() if command.startswith(beginning)), None)
            shown[command] = self.shell.type(command) if awaited is None else self.shell.type_until(command, awaited)
        return shown

    def finish(self) -> None:
        assert self._left == [], "these blocks of the scenario were not typed"


@contextlib.contextmanager
def reading(scenario: str, folder: Path, environment: Mapping[str, str]) -> Iterator[Reader]:
    """A reader in front of a checkout of its own."""
    shell = Shell(folder / "checkout", environment)
    reader = Reader(scenario, shell)
    try:
        yield reader
        reader.finish()
    except CommandRefused as error:
        if "KUBECONFIG" in environment:
            look = "kubectl get dlj,pods --all-namespaces -o wide; kubectl diloco status --all-namespaces"
            seen = subprocess.run(["bash", "-c", look], env=dict(environment), capture_output=True, text=True, check=False)
            error.add_note(seen.stdout + seen.stderr)
        raise
    finally:
        shell.close()


def a_checkout(folder: Path) -> Path:
    """What the commands need of this repository, with this one's programs."""
    checkout = folder / "checkout"
    checkout.mkdir()
    for name in ("Makefile", "pyproject.toml", "uv.lock", "README.md"):
        shutil.copy2(ROOT / name, checkout)
    # The kernels: what `make` compiles into a checkout must be there, or it would set this one up.
    (checkout / "runtimes").mkdir()
    for name in ("pyproject.toml", "hatch_build.py"):
        shutil.copy2(ROOT / "runtimes" / name, checkout / "runtimes")
    for name in ("examples", "helm", "crds", "hack", "runtimes/diloco/kernels"):
        shutil.copytree(ROOT / name, checkout / name)
    (checkout / "tests").symlink_to(ROOT / "tests")  # of which the simulated nodes are a part
    # The environment counts as complete, or `make` would install this checkout into it.
    (checkout / ".venv").mkdir()
    for part in (ROOT / ".venv").iterdir():
        (checkout / ".venv" / part.name).symlink_to(part)
    (checkout / ".venv" / ".synced").unlink(missing_ok=True)
    (checkout / ".venv" / ".synced").touch()
    return checkout


def write_files(page: str, checkout: Path) -> None:
    """The files that the page tells its reader to write."""
    for path, text in page_files.of(ROOT / page).items():
        file = checkout / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)


def environment_of(plane: ControlPlane, *, activated: bool) -> dict[str, str]:
    """Return the environment of a person who has kubectl, Helm and access to the cluster. `~/.kube/config` is the same access.
    `activated`: with this repository's programs on PATH."""
    environment = plane.environment
    config = Path(environment["HOME"], ".kube", "config")
    config.parent.mkdir(exist_ok=True)
    shutil.copy(plane.kubeconfig, config)
    own = [] if activated else [str(Path(sys.executable).parent)]
    path = ":".join(each for each in environment["PATH"].split(":") if each not in own)
    return {**environment, "PATH": path, "REGISTRY": "registry.example.com/diloco"}


def make_small(checkout: Path, example: str, steps: int | None = None, **environment: str) -> None:
    """The job of an example with learners that start at once: a tiny model in numpy. `steps`: as many outer steps."""
    file = checkout / "examples" / example
    job = yaml.safe_load(file.read_text())
    if steps:
        job["spec"]["training"]["steps"] = steps
    for pool in job["spec"]["pools"]:
        [container] = pool["template"]["spec"]["containers"]
        container["command"] = ["python", str(PROGRAM)]
        container["env"] = [{"name": name, "value": value} for name, value in {"QUADRATIC_STEP_MS": "20", **environment}.items()]
    file.write_text(yaml.safe_dump(job, sort_keys=False))


def last(shown: Mapping[str, str]) -> str:
    return list(shown.values())[-1]
