"""Network namespaces without a name: one lives as long as this process has it open or a process runs in it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack

from builders.child_processes import die_with_parent


class NoNetwork(RuntimeError):
    """This machine cannot have such a network; the message says what is missing, and what to do."""


def entering(namespace: int) -> Callable[[], None]:
    """Return what a new process does first to be in this namespace, and to end with the thread that starts it."""

    def enter() -> None:
        os.setns(namespace, os.CLONE_NEWNET)
        die_with_parent()

    return enter


def new_namespace(stack: ExitStack) -> int:
    """Return a descriptor of a new namespace, which `stack` closes."""

    def make() -> int:
        os.unshare(os.CLONE_NEWNET)  # of this thread alone
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    try:
        made = _in_thread(make)
    except PermissionError as error:
        raise NoNetwork("this root may not make network namespaces: give CAP_SYS_ADMIN and CAP_NET_ADMIN to this container") from error
    stack.callback(os.close, made)
    return made


def in_namespace[Result](namespace: int, do: Callable[[], Result]) -> Result:
    def inside() -> Result:
        os.setns(namespace, os.CLONE_NEWNET)
        return do()

    return _in_thread(inside)


def _in_thread[Result](do: Callable[[], Result]) -> Result:
    """Return what `do` gives in a thread of its own: the namespace that it enters is that of this thread alone."""
    found: list[Result] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(do())
        except BaseException as error:  # noqa: BLE001 -- it is raised below
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def run_in(namespace: int, *command: str) -> None:
    done = subprocess.run(command, preexec_fn=entering(namespace), capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNetwork(f"{' '.join(command)}: {done.stderr.strip() or 'it failed'}")
