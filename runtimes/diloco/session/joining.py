"""How a process becomes a member of its job, alone or with the other ranks of its unit, from its environment and its model.

See docs/decisions/0151-step-boundary.md. See docs/decisions/0159-ranks-of-a-unit.md.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence

from diloco.algorithm.fragments import make_fragments
from diloco.algorithm.layout import Layout, LayoutError
from diloco.algorithm.pieces import wholes
from diloco.contract import Exit
from diloco.environment import ContractError
from diloco.learner.config import LearnerConfig, read_learner_config
from diloco.learner.inbox import Inbox
from diloco.learner.incarnations import Incarnations
from diloco.learner.inner_state import InnerState
from diloco.learner.leave import leave
from diloco.learner.member import Member, make_parts
from diloco.learner.peers import Peers
from diloco.learner.program import Program
from diloco.learner.solo import SoloMember
from diloco.learner.store import ParameterStore
from diloco.protocol.diloco_pb2 import FrozenTensor, Hello, Tensor
from diloco.protocol.tls import TlsError, WrongIdentity
from diloco.ranks.world import World
from diloco.recovery.peers import PeersOfUnit
from diloco.recovery.process_state import ProcessState
from diloco.recovery.whole_state import StateOfProcess
from diloco.wording import plural

_log = logging.getLogger(__name__)


def read_config(environment: Mapping[str, str], framework: str, ranks: int, how_to_meet: str) -> LearnerConfig:
    """Return what the environment says. Raises Leave if it is wrong, or if the certificate has another identity.

    `ranks`: how many processes of this unit the framework knows. `how_to_meet`: what a program must do so that the framework knows all.
    """
    try:
        config = read_learner_config(environment)
        if config.ranks != ranks:
            raise ContractError(
                f"unit {config.unit} runs as {plural(config.ranks, 'process', 'processes')} on {plural(config.hosts, 'host')}, and "
                f"{framework} knows of {ranks}: {how_to_meet}"
            )
    except ContractError as error:
        raise leave(Exit.BAD_CONTRACT, str(error)) from error
    try:
        config.tls.examine(config.identity)
    except WrongIdentity as error:
        raise leave(Exit.REFUSED_UNAUTHENTICATED, str(error)) from error
    except TlsError as error:
        _log.warning("%s", error)  # no reason to leave: the files may be renewed at any moment, and the connection waits for that
    return config


def make_member(
    config: LearnerConfig,
    store: ParameterStore,
    framework: str,
    world: World | None,
    on_adopt: Callable[[Sequence[str]], None] | None,
    inner: InnerState | None = None,
) -> Member:
    """Return this process's membership in the job, not started yet. Raises Leave if the model cannot be trained in this job, and if the
    ranks of the unit do not agree or do not come.

    Args:
        world: the other processes of the unit; None if there are none.
        inner: the state beside the parameters; None if the framework's adapter does not know it.
    """
    try:
        layout = Layout(store.specs(), store.frozen())
        fragments = make_fragments(layout, config.job.training.fragments)
    except LayoutError as error:
        raise leave(Exit.REFUSED_LAYOUT, f"this model cannot be trained in job {config.job.name}: {error}") from error
    program = Program(store, layout, fragments, on_adopt, inner)
    hello = _hello(config, layout, framework)
    if world is None:
        incarnations = Incarnations()
        peers = Peers()
        if inner is not None:
            process = ProcessState(config, layout, fragments, inner, wholes(layout.tensors), incarnations)
            peers = PeersOfUnit(config, layout, process, StateOfProcess(process))
        hello.peer_address, hello.inner_state = peers.address, peers.kind
        hello.locality, hello.cluster = config.locality, config.cluster
        inbox = Inbox(config.job.training.overlap_steps)
        return SoloMember(make_parts(config, hello, program, inbox, incarnations, peers))
    from diloco.ranks.join import join_ranks  # here, as a process that is a unit of its own starts faster without it

    try:
        return join_ranks(config, program, hello, world)
    except ContractError as error:
        raise leave(Exit.BAD_CONTRACT, str(error)) from error


def _hello(config: LearnerConfig, layout: Layout, framework: str) -> Hello:
    return Hello(
        job_uid=config.job.uid,
        unit=config.unit,
        attempt=config.attempt,
        session=secrets.token_bytes(16),
        framework=framework,
        tensors=[Tensor(name=x.name, shape=x.shape, embedding=x.embedding, stack_axes=x.stack_axes) for x in layout.tensors],
        fingerprint=layout.fingerprint,
        frozen=[FrozenTensor(name=x.name, shape=x.shape, digest=x.digest) for x in layout.frozen],
    )
