"""`python -m diloco.syncer`: the syncer of one job, from the contract's environment to an exit status of the contract."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import secrets
import signal
import sys
from collections.abc import Mapping, Sequence

import grpc

from diloco.contract import Exit
from diloco.environment import ContractError
from diloco.protocol import rpc
from diloco.protocol.channel import Keepalive, server_options
from diloco.protocol.tls import TlsError, server_credentials
from diloco.snapshots.writer import SnapshotWriter
from diloco.start.source import StartError, open_source
from diloco.syncer.config import SyncerConfig, Timeouts, read_config
from diloco.syncer.fences import FencesError
from diloco.syncer.job.engine import Engine, RunOutcome
from diloco.syncer.job.restore import BadState, open_tape, remove_states, restore, snapshot_places
from diloco.syncer.reporting.event_writer import EventWriter
from diloco.syncer.reporting.reports import result_json
from diloco.syncer.streams.changes import Changes
from diloco.syncer.streams.service import Service

_log = logging.getLogger(__name__)

_LAST_REPORTS = 1.0
"""How long watchers may take to receive the last report, seconds."""


class ListenError(Exception):
    """The address cannot be served."""


class SyncerServer:
    """One syncer in this event loop: it reads the volume and runs the server and the engine. `start` sets `address`."""

    def __init__(self, config: SyncerConfig) -> None:
        self._config = config
        self.address = ""

    async def start(self) -> None:
        """Read the volume and serve. Raises BadState, FencesError, ListenError, and StartError if `startFrom` cannot be used."""
        config = self._config
        store, remote = snapshot_places(config)
        state = await asyncio.to_thread(restore, config, store, remote)
        if state.message:
            _log.warning("%s", state.message)
        start_from = config.job.start_from if state.core is None else None
        source = await asyncio.to_thread(open_source, start_from.uri) if start_from is not None else None
        if state.core is None:
            await asyncio.to_thread(remove_states, config)
        changes = Changes()
        self._snapshots = SnapshotWriter(store, remote, changes.notify, state.snapshot)
        self._events = EventWriter(
            config.state_dir / "tensorboard",
            steps=config.job.training.steps,
            t=state.core.t if state.core is not None else 0,
            changed=changes.notify,
        )
        process = secrets.token_bytes(16)
        tape = open_tape(config, state, process, changes.notify)
        self.engine = Engine(config, state, self._snapshots, tape, self._events, changes, process, start=source)
        self._server = grpc.aio.server(options=server_options(config.timeouts.keepalive))
        rpc.serve(Service(self.engine, config.job.uid, changes, config.timeouts.hello), self._server)
        try:
            port = self._server.add_secure_port(config.address, server_credentials(config.tls))
        except (RuntimeError, TlsError) as error:
            raise ListenError(f"cannot serve on {config.address}: {error}") from error
        self.address = f"{config.address.rpartition(':')[0]}:{port}"
        await self._server.start()
        begins = f"begins with {source.name}" if source is not None else "waits for a learner's first parameters"
        how = f"goes on from outer step {state.core.t}" if state.core else begins
        _log.info("syncer of job %s on %s %s", config.job.name, self.address, how)

    async def run(self) -> RunOutcome:
        """Run until the job is complete or `engine.stop` was called, and close everything. Raises what `Engine.run` does."""
        try:
            outcome = await self.engine.run()
            if outcome is RunOutcome.COMPLETE:
                self._leave_result()
        finally:
            await self._events.close()
            await self._server.stop(_LAST_REPORTS)
            self.engine.close()
        return outcome

    def _leave_result(self) -> None:
        result = self.engine.result()
        _log.info("complete at outer step %d: %d tokens, held-out loss %s", result.step, result.tokens, result.held_out_loss)
        _log.info("ledger: %s", self.engine.ledger())
        log = self._config.termination_log
        if log is None:
            return
        try:
            log.write_bytes(result_json(result))
        except OSError as error:
            _log.error("the result could not be written to %s: %s", log, error.strerror or error)  # the snapshot is what counts


async def serve(config: SyncerConfig) -> Exit:
    """Run a syncer until its end. SIGTERM and SIGINT stop its engine."""
    syncer = SyncerServer(config)
    try:
        await syncer.start()
    except StartError as error:
        _say(str(error))
        return Exit.BAD_START
    except (BadState, FencesError) as error:
        _say(str(error))
        return Exit.BAD_STATE
    except ListenError as error:
        _say(str(error))
        return Exit.CRASHED
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, syncer.engine.stop)
    try:
        outcome = await syncer.run()
    except StartError as error:
        _say(str(error))
        return Exit.BAD_START
    return Exit.COMPLETE if outcome is RunOutcome.COMPLETE else Exit.DRAINED


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None) -> int:
    """Return the exit status, one of `contract.Exit`."""
    # Containers often begin with a soft limit of 1,024 descriptors, so many connections would leave none for files.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = read_config(os.environ if environment is None else environment, _timeouts(arguments))
    except ContractError as error:
        _say(str(error))
        return Exit.BAD_CONTRACT
    return asyncio.run(serve(config))


def _timeouts(arguments: Sequence[str] | None) -> Timeouts:
    usual = Timeouts()
    parser = argparse.ArgumentParser(prog="python -m diloco.syncer", description="The syncer of one DiLoCoJob. All times in seconds.")
    parser.add_argument("--keepalive", type=float, default=usual.keepalive.every, help="ping a silent learner this often (%(default)s)")
    parser.add_argument("--keepalive-timeout", type=float, default=usual.keepalive.timeout, help="a ping may take this long (%(default)s)")
    parser.add_argument(
        "--reconnect-window", type=float, default=usual.reconnect_window, help="a lost learner keeps its work this long (%(default)s)"
    )
    parser.add_argument("--farewell", type=float, default=usual.farewell, help="wait for evaluations this long at the end (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        return Timeouts(Keepalive(given.keepalive, given.keepalive_timeout), given.reconnect_window, given.farewell)
    except ValueError as error:
        parser.error(str(error))


def _say(message: str) -> None:
    sys.stderr.write(f"diloco syncer: {message}\n")
    sys.stderr.flush()
