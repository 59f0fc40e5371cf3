"""A real Kubernetes control plane as plain processes: etcd, kube-apiserver, kube-controller-manager and kube-scheduler, ready in about 4 s.

Needs nothing else of this repository but ports.py beside it and hack/kube/assets.sh, which finds or builds the programs. Everything that
is started dies with the process that started it.

See docs/decisions/0082-real-programs-in-tests.md.
"""

from __future__ import annotations

import base64
import concurrent.futures
import ctypes
import datetime
import ipaddress
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from builders.ports import held_port
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

type Json = dict[str, Any]

ROOT = Path(__file__).resolve().parents[2]
CRD = ROOT / "crds" / "diloco.dev_dilocojobs.yaml"
PROGRAMS = ROOT / ".tools" / "kube" / "bin"
PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
CLIENTS = ("kubectl", "helm")

START_SECONDS = 180.0
"""How long anything is waited for; a start usually takes 4 s. A limit for defects, not an expectation."""
_POLL_SECONDS = 0.02
_LOG_LINES = 25
_SERVICE_RANGE = "10.96.0.0/16"
_SERVICE_IP = "10.96.0.1"
_ISSUER = "https://kubernetes.default.svc.cluster.local"
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_NOT_READY = "node.kubernetes.io/not-ready"

RARE_COLLECTIONS = {"GOGC": "400"}
"""For programs in Go: a collection once the heap is five times what is in use, and not twice. The API server then takes a quarter less of
the processor, at its start and at work, and 600 MB in place of 350; kubectl and Helm take a quarter less, too."""

# Every request but the health checks, without bodies. One line a request, written before the answer is given.
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "nonResourceURLs": ["/readyz*", "/livez*", "/healthz*"]}, {"level": "Metadata"}],
}


LATE = "late"
ON_LATE = {"syncer": {"storage": {"className": LATE}}}
"""Fields of the spec of a job whose syncer has a volume of this class."""


class ControlPlaneError(Exception):
    """A program is missing, ended early or did not get ready. The message holds its last log lines."""


class CommandFailed(Exception):
    """kubectl or helm ended with another code than 0."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.done = done
        super().__init__(f"{' '.join(done.args)} ended with {done.returncode}\n{done.stderr}{done.stdout}")


class RequestFailed(Exception):
    """The API server refused a request."""

    def __init__(self, method: str, path: str, code: int, text: str) -> None:
        self.code = code
        super().__init__(f"{method} {path}: {code} {text}")


# --- programs ---------------------------------------------------------------------------------------------------------
def missing_programs(names: Sequence[str] = (*PLANE, *CLIENTS)) -> list[str]:
    """Which of them have no link yet, or one that leads nowhere, or past what KUBEBUILDER_ASSETS holds."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")

    def linked(name: str) -> bool:
        wanted = Path(assets, name)
        passed = bool(assets) and os.access(wanted, os.X_OK) and (PROGRAMS / name).resolve() != wanted.resolve()
        return os.access(PROGRAMS / name, os.X_OK) and not passed

    return [name for name in names if not linked(name)]


def provide_programs(names: Sequence[str] = (*PLANE, *CLIENTS)) -> None:
    """Find or build what is missing; building takes minutes, once, and tells of itself on standard error."""
    missing = missing_programs(names)
    if not missing:
        return
    done = subprocess.run([ROOT / "hack" / "kube" / "assets.sh", *missing], stdin=subprocess.DEVNULL, stdout=sys.__stderr__, check=False)
    if done.returncode != 0 or missing_programs(missing):
        raise ControlPlaneError(
            f"hack/kube/assets.sh {' '.join(missing)} did not provide the programs (exit code {done.returncode}); see what it said above"
        )


class _Program:
    """One process with its log. Dies when the process that started it does, however that ends."""

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, launcher: concurrent.futures.Executor) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = [str(PROGRAMS / name), *arguments]
        self._folder = folder
        self._launcher = launcher
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def start(self) -> None:
        assert self._process is None, f"{self.name} runs already"
        # The signal comes when the THREAD that forked ends, so all forks are made by one thread that lives as long as the plane.
        self._process = self._launcher.submit(self._fork, os.getpid()).result()

    def _fork(self, parent: int) -> subprocess.Popen[bytes]:
        def die_with_parent() -> None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before the line above
                os._exit(1)

        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(self._folder), **RARE_COLLECTIONS}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    def check(self) -> None:
        """Raises `ControlPlaneError` if it ended."""
        code = self._process.poll() if self._process else None
        if code is not None:
            raise ControlPlaneError(f"{self.name} ended with {code}. The end of {self.log}:\n{self.last_lines()}")

    def last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def send(self, number: signal.Signals) -> None:
        self.check()
        os.kill(self.pid, number)


# --- certificates and kubeconfig files --------------------------------------------------------------------------------
def _write_certificates(folder: Path, addresses: Sequence[str]) -> None:
    """ca.crt, server.crt, server.key for the API server, and service-account.key, all for a day."""
    now = datetime.datetime.now(datetime.UTC)
    ca_key, server_key, account_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test-plane-ca")])

    def certificate(
        name: x509.Name, key: ec.EllipticCurvePrivateKey, extensions: Sequence[tuple[x509.ExtensionType, bool]]
    ) -> x509.Certificate:
        builder = x509.CertificateBuilder(ca_name, name, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(days=1))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(ca_key, hashes.SHA256())

    no_usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False
    )
    signs = x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **no_usage)
    key_id = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = certificate(ca_name, ca_key, [(x509.BasicConstraints(ca=True, path_length=None), True), (signs, True), (key_id, False)])
    names: list[x509.GeneralName] = [
        x509.DNSName(name) for name in ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
    ]
    names += [x509.DNSName("kubernetes.default.svc.cluster.local")]
    names += [
        x509.IPAddress(ipaddress.ip_address(address))
        for address in dict.fromkeys(("127.0.0.1", _SERVICE_IP, *addresses))
        if address != "0.0.0.0"
    ]
    server = certificate(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")]),
        server_key,
        [
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), False),
            (x509.SubjectAlternativeName(names), False),
        ],
    )
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    for name, key in (("server.key", server_key), ("service-account.key", account_key)):
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
        _write_private(folder / name, pem)


def _write_private(path: Path, content: bytes) -> None:
    path.touch(0o600)
    path.write_bytes(content)


# --- the plane --------------------------------------------------------------------------------------------------------
class ControlPlane:
    """A control plane of one's own, in `folder` (logs, keys, etcd's data), which runs for as long as the context is open.

    `controllers`, `scheduler`: whether these programs run. `audit`: keep the log that `audit_events` reads. `bind_address`: where
    the API server listens. `addresses`: further ones by which it is reached, for its certificate. `node_grace`: how long a node may be
    silent before it counts as lost; long, since simulated nodes are silent. `…_args`: further arguments of the programs.

    Raises `ControlPlaneError` when a program is missing or does not come up.
    """

    def __init__(
        self,
        folder: Path,
        *,
        controllers: bool = True,
        scheduler: bool = True,
        audit: bool = False,
        bind_address: str = "127.0.0.1",
        addresses: Sequence[str] = (),
        node_grace: str = "24h",
        api_server_args: Sequence[str] = (),
        controller_args: Sequence[str] = (),
        scheduler_args: Sequence[str] = (),
    ) -> None:
        provide_programs()
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._port, self._etcd_port, self._peer_port = held_port(), held_port(), held_port()
        self.host = "127.0.0.1" if bind_address == "0.0.0.0" else bind_address
        self.url = f"https://{self.host}:{self._port}"
        self.ca_file = self.folder / "ca.crt"
        _write_certificates(self.folder, [bind_address, *addresses])
        self._ssl = ssl.create_default_context(cafile=str(self.ca_file))
        self._admin_token = os.urandom(16).hex()
        users = {"admin": (self._admin_token, "system:masters"), **{f"system:{name}": (os.urandom(16).hex(), "") for name in PLANE[2:]}}
        lines = [f'{token},{user},{user},"{group}"' if group else f"{token},{user},{user}" for user, (token, group) in users.items()]
        _write_private(self.folder / "tokens.csv", ("\n".join(lines) + "\n").encode())
        self.kubeconfig = self.kubeconfig_for(self._admin_token, "admin")
        self._controllers = controllers
        self._audit_log = self.folder / "audit.log" if audit else None

        # A thread of the pool is made at the first fork and stays until the pool is shut down.
        self._launcher = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="control-plane")
        arguments = {
            "etcd": self._etcd_args(),
            "kube-apiserver": [*self._api_server_args(bind_address), *api_server_args],
            "kube-controller-manager": [*self._controller_args(users["system:kube-controller-manager"][0], node_grace), *controller_args],
            "kube-scheduler": [*self._scheduler_args(users["system:kube-scheduler"][0]), *scheduler_args],
        }
        unwanted = {name for name, wanted in (("kube-controller-manager", controllers), ("kube-scheduler", scheduler)) if not wanted}
        self._programs = {name: _Program(name, arguments[name], self.folder, self._launcher) for name in PLANE if name not in unwanted}

    # --- arguments ---
    def _etcd_args(self) -> list[str]:
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        return [
            *("--data-dir", str(self.folder / "etcd")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"),
            *("--unsafe-no-fsync", "--log-level=warn", f"--quota-backend-bytes={4 << 30}"),
        ]

    def _api_server_args(self, bind_address: str) -> list[str]:
        arguments = [
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--bind-address={bind_address}",
            f"--secure-port={self._port}",
            f"--cert-dir={self.folder}",
            f"--tls-cert-file={self.folder / 'server.crt'}",
            f"--tls-private-key-file={self.folder / 'server.key'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={self.folder / 'service-account.key'}",
            f"--service-account-signing-key-file={self.folder / 'service-account.key'}",
            f"--service-cluster-ip-range={_SERVICE_RANGE}",
            "--allow-privileged=true",  # as on every real cluster; Pod Security says who may
            "--etcd-compaction-interval=0",  # only a test forgets history, and when it wants to
        ]
        if ipaddress.ip_address(self.host).is_loopback:
            # A loopback address is not allowed as an endpoint of the Service `kubernetes`; nothing could reach it there anyway.
            arguments += ["--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"]
        if self._audit_log:
            policy = self.folder / "audit-policy.json"
            policy.write_text(json.dumps(_AUDIT_POLICY))
            arguments += [f"--audit-policy-file={policy}", f"--audit-log-path={self._audit_log}", "--audit-log-mode=blocking-strict"]
            arguments += ["--audit-log-maxsize=100000"]  # one file, so that positions in it stay: by default a new one follows after 100 MB
        return arguments

    def _controller_args(self, token: str, node_grace: str) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig_for(token, 'kube-controller-manager')}",
            *("--leader-elect=false", "--secure-port=0", "--use-service-account-credentials"),
            f"--service-account-private-key-file={self.folder / 'service-account.key'}",
            f"--root-ca-file={self.ca_file}",
            f"--node-monitor-grace-period={node_grace}",
            *("--kube-api-qps=500", "--kube-api-burst=1000"),  # the plane's own limits are not what is measured
        ]

    def _scheduler_args(self, token: str) -> list[str]:
        kubeconfig = self.kubeconfig_for(token, "kube-scheduler")
        return [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=2000"]

    # --- life ---
    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        for name in ("etcd", "kube-apiserver"):
            self._programs[name].start()
        self._wait_ready()
        for name, program in self._programs.items():
            if name not in ("etcd", "kube-apiserver"):
                program.start()
        if not self._controllers:  # without it no pod is admitted, and the controller manager would have made it
            self.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        self.wait_for(lambda: self._exists("/api/v1/namespaces/default/serviceaccounts/default"), "the ServiceAccount default")

    def _stop(self) -> None:
        for program in reversed(self._programs.values()):
            program.kill()
        self._launcher.shutdown()

    def _wait_ready(self) -> None:
        self.wait_for(lambda: self._exists("/readyz"), "the API server to be ready")

    def _exists(self, path: str) -> bool:
        try:
            self._send("GET", path, None, "")
        except RequestFailed as error:
            if error.code in (403, 404, 500, 503):  # 403: the roles are not written yet
                return False
            raise
        except (ConnectionError, urllib.error.URLError, TimeoutError):
            return False
        return True

    def wait_for(self, holds: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
        """Wait until `holds`. Raises `ControlPlaneError` when a program ends meanwhile, or after `seconds`."""
        end = time.monotonic() + seconds
        while not holds():
            for program in self._programs.values():
                program.check()
            if time.monotonic() > end:
                logs = "\n".join(
                    f"--- {program.log}:\n{program.last_lines()}" for program in self._programs.values() if program.log.exists()
                )
                raise ControlPlaneError(f"waited {seconds:.0f} s for {what} in vain. The programs' last lines:\n{logs}")
            time.sleep(_POLL_SECONDS)

    def stop_api_server(self) -> None:
        """Gone at once, as when its machine is lost: connections break, and nothing listens at its address."""
        self._programs["kube-apiserver"].kill()

    def start_api_server(self) -> None:
        """At its old address, with all that etcd holds; returns when it is ready."""
        self._programs["kube-apiserver"].start()
        self._wait_ready()

    def kill(self, program: str) -> None:
        """One of `PLANE` ends. In a cluster controller manager and scheduler hold leases, and end when they cannot renew them; here they
        live on, and after a long outage they judge by what they saw before it."""
        self._programs[program].kill()

    def begin(self, program: str) -> None:
        """Start again what was killed, as its kubelet does."""
        self._programs[program].start()

    def pause(self, program: str) -> None:
        """Freeze one of `PLANE`: it keeps its connections and answers nothing."""
        self._programs[program].send(signal.SIGSTOP)

    def resume(self, program: str) -> None:
        self._programs[program].send(signal.SIGCONT)

    def pid(self, program: str) -> int:
        return self._programs[program].pid

    def log(self, program: str) -> Path:
        """Where a program writes what it has to say."""
        return self._programs[program].log

    # --- etcd ---
    def compact(self) -> None:
        """Drop every old version from etcd, and wait until it is dropped.

        The API server still serves watches from its own memory of the latest events: a version is surely gone (410) only after
        `forget_history`.
        """
        revision = self._etcd("range", {"key": base64.b64encode(b"\0").decode(), "limit": "1", "keys_only": True})["header"]["revision"]
        self._etcd("compaction", {"revision": revision, "physical": True})

    def forget_history(self) -> None:
        """Compact, and restart the API server: every watch breaks, and continuing from a version of before is refused with 410.

        Controllers and scheduler stand still meanwhile. Otherwise they would find no API server, and wait longer each time they look again:
        up to a minute after a slow start.
        """
        self.compact()
        others = [name for name in self._programs if name in PLANE[2:]]
        for name in others:
            self.pause(name)
        self.stop_api_server()
        self.start_api_server()
        for name in others:
            self.resume(name)

    def back_up_etcd(self, folder: Path) -> None:
        """Copy what etcd holds now into a new folder."""
        self.kill("etcd")
        shutil.copytree(self.folder / "etcd", folder)
        self.begin("etcd")

    def restore_etcd(self, folder: Path) -> None:
        """The API server and etcd begin again with what a backup holds, as does the rest of the plane."""
        for program in reversed(self._programs.values()):
            program.kill()
        shutil.rmtree(self.folder / "etcd")
        shutil.copytree(folder, self.folder / "etcd")
        self._start()

    @property
    def etcd_url(self) -> str:
        """Return the address of etcd's JSON gateway."""
        return f"http://127.0.0.1:{self._etcd_port}/v3"

    def _etcd(self, call: str, body: Json) -> Json:
        url = f"{self.etcd_url}/kv/{call}"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            content: Json = json.load(answer)
        return content

    # --- access ---
    def kubeconfig_for(self, token: str, name: str) -> Path:
        """A kubeconfig file with the token; `name` names the file and the context. Only its owner may read it."""
        # YAML holds JSON, so this is a kubeconfig as every client reads it.
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca_file)}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": "test", "user": name, "namespace": "default"}}],
            "current-context": name,
        }
        path = self.folder / f"{name}.kubeconfig"
        _write_private(path, json.dumps(content, indent=1).encode())
        return path

    def token(self, namespace: str, service_account: str, *, audiences: Sequence[str] = (), seconds: int = 3600) -> str:
        """A token of the ServiceAccount from the TokenRequest API, good for `seconds` (the API server wants 600 at least)."""
        spec = {"expirationSeconds": seconds, **({"audiences": list(audiences)} if audiences else {})}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        made = self.request("POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
        token: str = made["status"]["token"]
        return token

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Json:
        """One request as cluster-admin, `path` with its query; the answer's JSON. Raises `RequestFailed`."""
        content: Json = json.loads(self._send(method, path, body, content_type))
        return content

    def _send(self, method: str, path: str, body: Any, content_type: str) -> bytes:
        headers = {"Authorization": f"Bearer {self._admin_token}", "Accept": "application/json"}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), content_type
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=START_SECONDS, context=self._ssl) as answer:
                content: bytes = answer.read()
        except urllib.error.HTTPError as error:
            raise RequestFailed(method, path, error.code, error.read().decode(errors="replace")) from error
        return content

    @property
    def environment(self) -> dict[str, str]:
        """For programs that find the cluster as kubectl does: KUBECONFIG, caches of the plane's own, kubectl and its plugins on PATH."""
        own = self.folder / "home"
        own.mkdir(exist_ok=True)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "HELM_"))}
        return {
            **inherited,
            **RARE_COLLECTIONS,
            "HOME": str(own),
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(own / "kube-cache"),
            "HELM_CACHE_HOME": str(own / "helm-cache"),
            "HELM_CONFIG_HOME": str(own / "helm-config"),
            "HELM_DATA_HOME": str(own / "helm-data"),
            "PATH": f"{PROGRAMS}:{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        }

    def kubectl(self, *args: str, input: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`kubectl ARGS` as cluster-admin. With `check`, raises `CommandFailed` with what it said."""
        return self._run("kubectl", args, input, check)

    def helm(self, *args: str, input: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`helm ARGS` as cluster-admin. With `check`, raises `CommandFailed` with what it said."""
        return self._run("helm", args, input, check)

    def _run(self, program: str, args: Sequence[str], input: str | None, check: bool) -> subprocess.CompletedProcess[str]:
        command = [str(PROGRAMS / program), *args]
        given: Json = {"stdin": subprocess.DEVNULL} if input is None else {"input": input}
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False, **given)
        if check and done.returncode != 0:
            raise CommandFailed(done)
        return done

    def install_crd(self, crd: Path = CRD) -> None:
        """Install the CRD, and wait until the server takes jobs and publishes their schema. Publishing comes after Established, and
        `kubectl explain` fails until then."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crd))
        self.wait_until_established("dilocojobs.diloco.dev")
        self.wait_for(lambda: self._publishes("apis/diloco.dev/v1alpha1", "dev.diloco.v1alpha1.DiLoCoJob"), "the schema of DiLoCoJob")

    def wait_until_established(self, *names: str) -> None:
        """Wait until the server serves what these CustomResourceDefinitions define, and says so to those who look for it. Both come
        after the condition Established."""
        for name in names:
            self.wait_for(lambda name=name: self._is_established(name), f"the resource of {name}")  # type: ignore[misc]

    def _is_established(self, name: str) -> bool:
        try:
            crd = self.request("GET", f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
        except RequestFailed as error:
            if error.code == 404:
                return False
            raise
        conditions = crd.get("status", {}).get("conditions") or []
        if not any(found["type"] == "Established" and found["status"] == "True" for found in conditions):
            return False
        group, plural = crd["spec"]["group"], crd["spec"]["names"]["plural"]
        for version in (each["name"] for each in crd["spec"]["versions"] if each["served"]):
            path = f"/apis/{group}/{version}"
            if not self._exists(f"{path}/{plural}?limit=1") or not self._exists(path):
                return False
            if plural not in {resource["name"] for resource in self.request("GET", path)["resources"]}:
                return False
        return True

    def _publishes(self, group_version: str, schema: str) -> bool:
        published = self.request("GET", "/openapi/v3")["paths"].get(group_version)
        if published is None:
            return False
        schemas = self.request("GET", published["serverRelativeURL"]).get("components", {}).get("schemas", {})
        return schema in schemas

    # --- audit ---
    def audit_position(self) -> int:
        """Where the audit log ends now, for `audit_events(since=...)`."""
        assert self._audit_log, "the plane was started without audit=True"
        if not self._audit_log.exists():
            return 0
        with self._audit_log.open("rb") as log:
            start = max(0, log.seek(0, os.SEEK_END) - (1 << 20))  # far more than one line
            log.seek(start)
            return start + log.read().rfind(b"\n") + 1  # the last line may be half written

    def audit_events(self, since: int = 0) -> list[Json]:
        """Every request that was answered, and every watch that began, oldest first; with user, verb, object and times, without bodies."""
        assert self._audit_log, "the plane was started without audit=True"
        with self._audit_log.open("rb") as log:
            log.seek(since)
            written = log.read()
        # The last line may be half written.
        return [json.loads(line) for line in written[: written.rfind(b"\n") + 1].splitlines()]

    # --- simulated nodes and volumes ---
    def beat(self, name: str) -> None:
        """The node says that it is ready, as its kubelet would."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {"type": "Ready", "status": "True", "lastHeartbeatTime": now}
        patch = {"status": {"conditions": [condition]}}
        self.request("PATCH", f"/api/v1/nodes/{name}/status", patch, content_type="application/strategic-merge-patch+json")

    def add_node(
        self,
        name: str,
        labels: Mapping[str, str] | None = None,
        capacity: Mapping[str, str] | None = None,
        *,
        ready: bool = True,
        taints: Sequence[Json] = (),
        wait: bool = True,
    ) -> Json:
        """A Node that nothing runs behind. `capacity` adds to 64 CPUs, 256Gi and 110 pods. Stays ready for `node_grace` of `start`.

        With `wait`, returns when the scheduler may use it: a new node is tainted until the controller manager has seen that it is ready.
        """
        resources = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110", **(capacity or {})}
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "Ready",
            "status": str(ready),
            "reason": "Simulated",
            "message": "",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        node = {
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})}},
            "spec": {"taints": list(taints)},
            "status": {
                "capacity": resources,
                "allocatable": resources,
                "conditions": [condition],
                "addresses": [{"type": "Hostname", "address": name}],
                "nodeInfo": {"kubeletVersion": "v1.36.3", "operatingSystem": "linux", "architecture": "amd64"},
            },
        }
        made = self.request("POST", "/api/v1/nodes", node)
        if ready and not self._controllers:
            patch = [{"op": "replace", "path": "/spec/taints", "value": list(taints)}]
            return self.request("PATCH", f"/api/v1/nodes/{name}", patch, content_type="application/json-patch+json")
        if ready and wait:
            self.wait_for(lambda: _NOT_READY not in self._taints(name), f"node {name} to lose the taint {_NOT_READY}")
            return self.request("GET", f"/api/v1/nodes/{name}")
        return made

    def _taints(self, node: str) -> set[str]:
        return {taint["key"] for taint in self.request("GET", f"/api/v1/nodes/{node}")["spec"].get("taints", [])}

    def offer_late_volumes(self) -> None:
        """A StorageClass that binds a claim only once its pod has a node. Nothing makes one: learners start, the syncer waits."""
        late = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": LATE}}
        late |= {"provisioner": "example.com/late", "volumeBindingMode": "WaitForFirstConsumer"}
        self.kubectl("apply", "-f", "-", input=json.dumps(late))

    def provide_volumes(self, folder: Path, count: int, *, size: str = "10Gi", prefix: str = "volume") -> None:
        """PersistentVolumes without a class, each a folder of this machine: claims without a class, up to `size`, get bound to them."""
        for index in range(count):
            path = folder / f"{prefix}-{index}"
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o777)  # pods run as a user of their own, and such volumes are not handed over to it
            spec = {
                "capacity": {"storage": size},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(path)},
            }
            self.request("POST", "/api/v1/persistentvolumes", {"metadata": {"name": f"{prefix}-{index}"}, "spec": spec})
