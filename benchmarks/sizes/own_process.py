"""Runs code that uses gRPC in a separate process: gRPC's threads do not survive a fork, and a benchmark forks for every process that it
starts."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from builders.child_processes import die_with_parent


def in_own_process[**P, T](function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a module's function, with arguments that can be pickled, in a new process. That process ends with this one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=die_with_parent) as pool:
        return pool.submit(function, *arguments, **named).result()
