"""`kubectl diloco doctor` and `diloco doctor`: what keeps jobs from running on a cluster, one line each, with what to do.

See docs/decisions/0176-explain-and-doctor.md.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import click
from diloco.wording import plural
from diloco_operator.kube.rest import RestClient
from diloco_operator.kube.rest.server_clock import ServerClock

from diloco_cli.checks import Finding, Level, examine
from diloco_cli.cluster import Target, on_cluster, target_options
from diloco_cli.commands.doctor_reading import Wanted, read_facts

EXIT_ERRORS = 1
"""Exit status if at least one finding is an error."""


@click.command(short_help="Find what keeps jobs from running on a cluster.")
@click.argument("job", default="")
@click.option("--cluster", "cluster_alone", is_flag=True, help="Look at the cluster alone, and at no namespace.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the output.")
@target_options
def doctor(target: Target, job: str, cluster_alone: bool, output: str) -> None:
    """Find what keeps JOB, or jobs of the namespace, from running: one line for each thing that was looked at, with what to do.

    It looks at versions, clocks, nodes and their drivers, storage classes, quotas, Pod Security, service meshes, and rights; with JOB also
    at its pools, its volume, and whether a pod of a learner reaches the syncer. It changes nothing. The exit status is 1 if there is an
    error, and 0 if there are warnings alone.
    """
    if job and cluster_alone:
        raise click.UsageError("give a JOB or --cluster, not both")
    clock = ServerClock()

    async def work(client: RestClient, namespace: str) -> Sequence[Finding]:
        wanted = Wanted("" if cluster_alone else namespace, job)
        return examine(await read_facts(client, wanted, clock))

    findings = on_cluster(target, work, on_date=clock.note)
    click.echo(as_json(findings) if output == "json" else as_text(findings))
    if any(finding.level is Level.ERROR for finding in findings):
        raise SystemExit(EXIT_ERRORS)


def as_text(findings: Sequence[Finding]) -> str:
    """A line for each finding, and below them the number of errors and warnings."""
    width = max((len(finding.check) for finding in findings), default=0)
    lines = []
    for finding in findings:
        remedy = f". What helps: {finding.remedy}" if finding.remedy else ""
        lines.append(f"{finding.level:7}  {finding.check:{width}}  {finding.where}: {finding.message}{remedy}")
    counts = Counter(finding.level for finding in findings)
    return "\n".join([*lines, f"{plural(counts[Level.ERROR], 'error')}, {plural(counts[Level.WARNING], 'warning')}"])


def as_json(findings: Sequence[Finding]) -> str:
    """`{"errors": 1, "warnings": 0, "findings": [{"check", "level", "where", "message", "remedy"}]}`."""
    counts = Counter(finding.level for finding in findings)
    body = {"errors": counts[Level.ERROR], "warnings": counts[Level.WARNING], "findings": [finding._asdict() for finding in findings]}
    return json.dumps(body, indent=2)
