"""The bundle of a learner outside the job's cluster: a folder with its certificate, the job file, and where the syncer is.

`kubectl diloco join-bundle` writes it. `diloco-launch --bundle FOLDER` starts a program with it, on any machine that reaches the syncer.
To renew the certificate, write the bundle again into the same folder: a learner reads the files anew for each connection.

See docs/decisions/0257-learners-outside.md.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from diloco import contract
from diloco.environment import ContractError


def bundle_environment(folder: Path) -> dict[str, str]:
    """Return the environment variables that a pod would have from the operator. Raises ContractError."""
    file = folder / contract.BUNDLE_FILE
    try:
        bundle = contract.Bundle.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ContractError(f"cannot read {file}: {error.strerror}. kubectl diloco join-bundle writes this folder") from error
    except ValidationError as error:
        raise ContractError(f"{file} is no bundle of kubectl diloco join-bundle; write it again") from error
    return {
        contract.ENV_JOB_FILE: str(folder / contract.JOB_FILE_KEY),
        contract.ENV_TLS_DIR: str(folder),
        contract.ENV_UNIT: bundle.unit,
        contract.ENV_ATTEMPT: str(bundle.attempt),
        contract.ENV_SYNCER_ADDRESS: bundle.syncer,
        # Nothing is known of the network there, so no other unit counts as near. No cluster has a name with a slash.
        contract.ENV_CLUSTER: f"outside/{bundle.unit}",
    }
