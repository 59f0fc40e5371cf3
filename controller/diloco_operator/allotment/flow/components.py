"""Jobs and classes that compete with each other, apart from those that they have nothing to do with. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from diloco_operator.allotment.flow.problem import FlowClass, FlowJob, FlowProblem


def components(problem: FlowProblem) -> Iterator[tuple[list[FlowJob], list[FlowClass]]]:
    """Yield jobs in the order in which they are served, and the classes that one of them can use."""
    hubs = {class_.name: class_.hub for class_ in problem.classes}
    above: dict[str, str] = {}

    def top(name: str) -> str:
        while (upper := above.setdefault(name, name)) != name:
            above[name] = above.get(upper, upper)
            name = upper
        return name

    for job in problem.jobs:
        for pool in job.pools:
            for hub in (*pool.values, *(hubs[each.class_] for each in pool.held)):
                above[top(f"hub {hub}")] = top(f"job {job.key}")
    jobs: dict[str, list[FlowJob]] = {}
    for job in sorted(problem.jobs, key=lambda job: job.order):
        jobs.setdefault(top(f"job {job.key}"), []).append(job)
    classes: dict[str, list[FlowClass]] = {}
    for class_ in sorted(problem.classes, key=lambda class_: class_.name):
        classes.setdefault(top(f"hub {class_.hub}"), []).append(class_)
    for name, found in jobs.items():
        yield found, classes.get(name, [])
