"""Network namespaces without a name. A namespace lives as long as this process has it open or a process runs in it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack

from builders.child_processes import die_with_parent


class NoNetwork(RuntimeError):
    """This machine cannot have such a network. The message says what is missing, and what to do."""


def entering(namespace: int) -> Callable[[], None]:
    """A `preexec_fn` that moves a new process into this namespace, and lets it end with the thread that starts it."""

    def enter() -> None:
        os.setns(namespace, os.CLONE_NEWNET)
        die_with_parent()

    return enter


def new_namespace(stack: ExitStack) -> int:
    """Make a namespace, and return its file descriptor, which `stack` closes."""

    def make() -> int:
        os.unshare(os.CLONE_NEWNET)  # of this thread alone
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    try:
        descriptor = _in_thread(make)
    except PermissionError as error:
        raise NoNetwork("this root may not make network namespaces: give CAP_SYS_ADMIN and CAP_NET_ADMIN to this container") from error
    stack.callback(os.close, descriptor)
    return descriptor


def in_namespace[Result](namespace: int, do: Callable[[], Result]) -> Result:
    def inside() -> Result:
        os.setns(namespace, os.CLONE_NEWNET)
        return do()

    return _in_thread(inside)


def _in_thread[Result](do: Callable[[], Result]) -> Result:
    """Run `do` in a thread of its own, and return its result. A namespace that it enters is that of this thread alone."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(do())
        except BaseException as error:  # noqa: BLE001 -- it is raised below
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def run_in(namespace: int, *command: str) -> None:
    done = subprocess.run(command, preexec_fn=entering(namespace), capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNetwork(f"{' '.join(command)}: {done.stderr.strip() or 'it failed'}")
