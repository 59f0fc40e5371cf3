"""Mutation testing of the pure packages: change one place of the code, run the package's tests, and see whether one of them fails.

`make mutants [SEED=1] [SAMPLE=60] [JOBS=2]` draws a sample by seed, so that a run can be repeated. Cosmic Ray makes the mutants. All work
happens in copies of the checkout; the checkout itself never changes.

See docs/decisions/0127-runs-of-tests.md.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import WorkDB
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "runtimes/diloco/algorithm": "tests/unit/diloco/algorithm",
    "runtimes/diloco/data": "tests/unit/diloco/data",
    "controller/diloco_operator/api": "tests/unit/diloco_operator/api",
    "controller/diloco_operator/fleet": "tests/unit/diloco_operator/fleet",
    "controller/diloco_operator/placement": "tests/unit/diloco_operator/placement",
    "controller/diloco_operator/reconcile": "tests/unit/diloco_operator/reconcile",
}
"""Pure package -> the tests that must notice a change of it. These are its own tests, so that a fault is found next to its cause."""
LEAST_SECONDS, TIMES_USUAL = 120.0, 5.0
"""A mutant hangs, and counts as killed, if its tests take longer than both: this many seconds, and this many times as long as the tests of
the unchanged code."""

type Place = tuple[Path, tuple[int, int]]


@dataclass(frozen=True)
class Verdict:
    """What the tests said about one mutant."""

    package: str
    survived: bool
    diff: str


def main() -> int:
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="diloco-mutants-") as folder:
        copies = [Path(folder, str(index)) for index in range(arguments.jobs)]
        for copy in copies:
            _copy_checkout(copy)
        os.chdir(copies[0])
        mutants = _draw(arguments.package or list(PACKAGES), arguments.seed, arguments.sample)
        limits = {package: _time_limit(package) for package in sorted({package for package, _ in mutants})}
        print(f"seed {arguments.seed}: {len(mutants)} mutants", flush=True)
        verdicts = []
        for number, verdict in enumerate(_judge(mutants, limits, copies), 1):
            verdicts.append(verdict)
            outcome = f"survived\n\n{verdict.diff}" if verdict.survived else "killed"
            print(f"{number}/{len(mutants)} {verdict.package} {outcome}", flush=True)
    _print_summary(verdicts)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--sample", type=int, default=60, help="how many places are changed, one mutant each")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants are tested at the same time")
    parser.add_argument("--package", action="append", choices=list(PACKAGES), help="only this one; may be repeated")
    return parser.parse_args()


def _copy_checkout(target: Path) -> None:
    """Copy the files that git tracks or would track, and the compiled kernels. Bytecode is left out: Python could take it for the bytecode
    of a mutant whose file has the same size and the same second."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    compiled = (str(path.relative_to(ROOT)) for path in (ROOT / "runtimes/diloco/kernels").glob("libkernels.so*"))
    for name in (*filter(None, listing.stdout.split("\0")), *compiled):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


# --- the sample -------------------------------------------------------------------------------------------------------
def _draw(packages: Sequence[str], seed: int, count: int) -> list[tuple[str, MutationSpec]]:
    """Draw `count` places, and one mutant for each. If mutants were drawn instead, a comparison, which has ten, would come ten times as
    often as `not`."""
    mutants: dict[Place, list[tuple[str, MutationSpec]]] = defaultdict(list)
    for package in packages:
        for mutation in _mutations(sorted(Path(package).rglob("*.py"))):
            mutants[mutation.module_path, mutation.start_pos].append((package, mutation))
    rng = random.Random(seed)
    places = rng.sample(sorted(mutants), min(count, len(mutants)))
    return [rng.choice(sorted(mutants[place], key=lambda mutant: (mutant[1].operator_name, mutant[1].occurrence))) for place in places]


def _mutations(modules: Sequence[Path]) -> Iterator[MutationSpec]:
    types = {module: _spans_of_types(module.read_text()) for module in modules}
    database = WorkDB(":memory:", WorkDB.Mode.create)
    with contextlib.closing(database):
        init(modules, database, {})
        for item in database.work_items:
            mutation = item.mutations[0]
            if not any(start <= mutation.start_pos < end for start, end in types[mutation.module_path]):
                yield mutation


def _spans_of_types(source: str) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Spans of annotations and type aliases. Nothing evaluates them when a test runs, so no test can notice a change of them."""
    nodes = list(ast.walk(ast.parse(source)))
    types = [child for node in nodes for child in (getattr(node, "annotation", None), getattr(node, "returns", None))]
    types += [node for node in nodes if isinstance(node, ast.TypeAlias)]
    return [_span(node) for node in types if isinstance(node, ast.expr | ast.stmt)]


def _span(node: ast.expr | ast.stmt) -> tuple[tuple[int, int], tuple[int, int]]:
    start = (node.lineno, node.col_offset)
    return start, (node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)


# --- the tests --------------------------------------------------------------------------------------------------------
def _test_command(package: str) -> str:
    return shlex.join([sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", PACKAGES[package]])


def _enter_copy() -> None:
    """Make the tests of this process import the copy in the working directory, not the installed checkout."""
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path.cwd() / source) for source in ("controller", "runtimes"))
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"


def _time_limit(package: str) -> float:
    """Seconds after which a mutant of this package hangs. Raises `SystemExit` if the tests fail without a mutant, since every mutant would
    seem killed then."""
    _enter_copy()
    began = time.monotonic()
    done = subprocess.run(shlex.split(_test_command(package)), check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"the tests of {package} fail without a mutant:\n{done.stdout}{done.stderr}")
    return max(LEAST_SECONDS, TIMES_USUAL * (time.monotonic() - began))


def _judge(mutants: Sequence[tuple[str, MutationSpec]], limits: dict[str, float], copies: Sequence[Path]) -> Iterator[Verdict]:
    """Judge the mutants in one process for each copy. Of n processes each takes every n-th mutant."""
    with contextlib.ExitStack() as stack:
        pending = []
        for index, copy in enumerate(copies):
            pool = stack.enter_context(ProcessPoolExecutor(1, initializer=_work_in, initargs=(copy,)))
            pending += [pool.submit(_judge_one, package, mutation, limits[package]) for package, mutation in mutants[index :: len(copies)]]
        for future in pending:
            yield future.result()


def _work_in(copy: Path) -> None:
    os.chdir(copy)
    _enter_copy()


def _judge_one(package: str, mutation: MutationSpec, limit: float) -> Verdict:
    result = mutate_and_test([mutation], _test_command(package), limit)
    if result.worker_outcome != WorkerOutcome.NORMAL:
        raise RuntimeError(f"the mutant could not be made: {mutation}\n{result.output}")
    return Verdict(package, result.test_outcome == TestOutcome.SURVIVED, result.diff.removeprefix("--- mutation diff ---\n"))


def _print_summary(verdicts: Sequence[Verdict]) -> None:
    total = Counter(verdict.package for verdict in verdicts)
    killed = Counter(verdict.package for verdict in verdicts if not verdict.survived)
    print()
    for package in sorted(total):
        print(f"{package}: {killed[package]} of {total[package]} killed")
    print(f"all: {sum(killed.values())} of {len(verdicts)} killed, {len(verdicts) - sum(killed.values())} survived")


if __name__ == "__main__":
    sys.exit(main())
