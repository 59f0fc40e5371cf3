"""A process of its own for what uses gRPC: its threads do not survive a fork, and a benchmark forks for every process that it starts."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from builders.child_processes import die_with_parent


def in_own_process[**P, T](function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call a function of a module with arguments that can be pickled. The process ends with this one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=die_with_parent) as pool:
        return pool.submit(function, *arguments, **named).result()
