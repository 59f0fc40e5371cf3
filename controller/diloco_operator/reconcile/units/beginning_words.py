"""How a unit's process got its parameters and inner state, in words. Pure.

See docs/decisions/0250-state-of-a-peer.md.
"""

from __future__ import annotations

from diloco.wording import plural

from diloco_operator.report import Recovery, RecoveryPhase


def began_with(recovery: Recovery | None) -> str:
    """Return the text of `status.units[].beganWith`, or "" if the process has not begun or does not say."""
    if recovery is None or recovery.phase is not RecoveryPhase.OVER:
        return ""
    behind = f", {plural(recovery.steps, 'local step')} behind it" if recovery.steps else ""
    size = f"({recovery.bytes / 2**20:.1f} MiB{behind})"
    if recovery.stored_at is not None:
        state = f"the optimizer's state that it had stored after outer step {recovery.stored_at} {size}"
    elif recovery.unit:
        state = f"the state of {recovery.unit} {size}"
    else:
        state = f"the parameters of the syncer, and an optimizer without state: {recovery.why}"
    phases = (
        ("program", recovery.start_seconds),
        ("parameters", recovery.parameters_seconds),
        ("donor", recovery.donor_seconds),
        ("wait", recovery.wait_seconds),
        ("copy", recovery.copy_seconds),
        ("first step", recovery.first_step_seconds),
    )
    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases if seconds >= 0.05)
    return f"{state}; {took}" if took else state


def takes_state(recovery: Recovery) -> str:
    """Say what a process that has the parameters does: it waits for the state of a peer, or copies it."""
    if recovery.phase is RecoveryPhase.COPYING and recovery.stored_at is not None:
        return "connected, takes the optimizer's state that it had stored"
    if recovery.phase is RecoveryPhase.COPYING:
        return f"connected, takes the optimizer's state of unit {recovery.unit}"
    failed = f"; before, {recovery.why}" if recovery.why else ""
    return f"connected, waits until a unit can give it the optimizer's state{failed}"
