"""What a container's words become on this machine."""

import pytest
from builders.pods import a_pod
from diloco.contract import ENV_ACCELERATORS_PER_HOST, ENV_PROCESSES_PER_HOST
from diloco_local.addresses import Addresses
from diloco_local.environment import (
    ContainerConfigError,
    LocalNames,
    Mount,
    Sources,
    command,
    cpu_devices,
    declared_environment,
    expand,
    field_value,
)
from diloco_operator.kube.client import Obj
from hypothesis import given
from hypothesis import strategies as st

NOTHING = Sources({}, {})
MOUNTS = [Mount("/etc/diloco/job", "/state/job"), Mount("/etc/diloco", "/state/etc"), Mount("/dev/termination-log", "/state/term/main")]


def as_is(text: str) -> str:
    return text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/etc/diloco/job/job.json", "/state/job/job.json"),  # the longest mount wins
        ("/etc/diloco/other", "/state/etc/other"),
        ("/etc/diloco", "/state/etc"),
        ("/dev/termination-log", "/state/term/main"),
        ("--file=/etc/diloco/job/job.json", "--file=/state/job/job.json"),
        ("cat /etc/diloco/job/a; cat '/etc/diloco/b'", "cat /state/job/a; cat '/state/etc/b'"),
        ("/etc/diloco/a:/etc/diloco/b", "/state/etc/a:/state/etc/b"),
        ("file:///etc/diloco/job", "file:///state/job"),
        ("/etc/diloco-other/x", "/etc/diloco-other/x"),  # another folder that begins alike
        ("/srv/etc/diloco/x", "/srv/etc/diloco/x"),  # inside a longer path
        ("s3://etc/diloco", "s3://etc/diloco"),
    ],
)
def test_paths_under_a_mount_become_the_folder_that_stands_for_it(text: str, expected: str) -> None:
    assert LocalNames(MOUNTS, as_is).translate(text) == expected


def test_mount_that_lies_in_the_folder_of_another_is_not_translated_twice() -> None:
    mounts = [Mount("/a", "/b/x"), Mount("/b", "/c")]
    assert LocalNames(mounts, as_is).translate("/a/file /b/file") == "/b/x/file /c/file"


@given(st.text(alphabet="abc/.-_ :=", max_size=40))
def test_text_without_a_mount_path_stays_as_it_is(text: str) -> None:
    assert LocalNames([Mount("/mnt/volume", "/elsewhere")], as_is).translate(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$(A)-$(B)", "1-$(B)"), ("$$(A)", "$(A)"), ("$$$(A)", "$1"), ("$A ${A}", "$A ${A}"), ("$(", "$("), ("a$", "a$")],
)
def test_references_expand_as_in_kubernetes(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


def test_a_variable_sees_only_those_before_it() -> None:
    env = [{"name": "FIRST", "value": "$(SECOND)"}, {"name": "SECOND", "value": "2"}, {"name": "THIRD", "value": "$(SECOND)"}]
    assert declared_environment(a_pod(), {"env": env}, NOTHING) == {"FIRST": "$(SECOND)", "SECOND": "2", "THIRD": "2"}


def test_env_from_takes_all_keys_with_a_prefix_and_env_wins() -> None:
    sources = Sources({"c": {"A": b"1", "B": b"2"}}, {"s": {"T": b"3"}})
    container = {
        "envFrom": [{"configMapRef": {"name": "c"}, "prefix": "P_"}, {"secretRef": {"name": "s"}}],
        "env": [{"name": "P_A", "value": "own"}],
    }
    assert declared_environment(a_pod(), container, sources) == {"P_A": "own", "P_B": "2", "T": "3"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMapKeyRef": {"name": "absent", "key": "k"}}, "configmap 'absent' not found"),
        ({"secretKeyRef": {"name": "s", "key": "absent"}}, "couldn't find key absent in secret 's'"),
        ({"fieldRef": {"fieldPath": "status.nonsense"}}, "not a field of the downward API"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "valueFrom resourceFieldRef is not supported"),
    ],
)
def test_missing_references_are_named(source: Obj, message: str) -> None:
    with pytest.raises(ContainerConfigError, match=message):
        declared_environment(a_pod(), {"env": [{"name": "X", "valueFrom": source}]}, Sources({}, {"s": {}}))


def test_optional_references_may_be_missing() -> None:
    env = [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "k", "optional": True}}}]
    assert declared_environment(a_pod(), {"env": env}, NOTHING) == {}


def test_downward_fields() -> None:
    pod = a_pod("p", node="n", metadata={"uid": "u", "labels": {"a": "1", "b": "2"}, "annotations": {"x/y": "z"}})
    pod["status"] = {"podIP": "127.5.0.2", "hostIP": "127.5.0.1"}
    paths = {"metadata.name": "p", "metadata.namespace": "default", "metadata.uid": "u", "spec.nodeName": "n", "status.podIP": "127.5.0.2"}
    paths |= {"metadata.labels['b']": "2", "metadata.annotations['x/y']": "z", "metadata.labels['none']": "", "status.hostIP": "127.5.0.1"}
    assert {path: field_value(pod, path) for path in paths} == paths
    assert field_value(pod, "metadata.labels") == 'a="1"\nb="2"'


def test_pod_wins_over_defaults_and_defaults_over_the_machine() -> None:
    container = {"name": "main", "command": ["run"], "env": [{"name": "A", "value": "pod"}]}
    configured = command(
        a_pod(), container, base={"A": "m", "B": "m", "C": "m"}, defaults={"A": "d", "B": "d"}, sources=NOTHING, names=LocalNames([], as_is)
    )
    assert configured.env == {"A": "pod", "B": "d", "C": "m"}


@pytest.mark.parametrize(
    ("accelerators", "processes", "devices"),
    [("4", "1", "4"), ("8", "4", "2"), ("8", "8", ""), ("0", "1", ""), ("1", "1", ""), ("8", "0", ""), ("many", "1", ""), ("8", "", "")],
)
def test_jax_gets_devices_where_a_process_has_several_accelerators(accelerators: str, processes: str, devices: str) -> None:
    said = {ENV_ACCELERATORS_PER_HOST: accelerators, ENV_PROCESSES_PER_HOST: processes}
    container = {"env": [{"name": name, "value": value} for name, value in said.items()]}
    assert cpu_devices(container) == ({"JAX_NUM_CPU_DEVICES": devices} if devices else {})


def test_container_without_a_command_says_what_to_do() -> None:
    with pytest.raises(ContainerConfigError, match="set command"):
        command(a_pod(), {"name": "main"}, base={}, defaults={}, sources=NOTHING, names=LocalNames([], as_is))


def test_arguments_are_expanded_with_the_values_that_kubernetes_would_see_and_then_translated() -> None:
    container = {
        "name": "main",
        "command": ["run", "--file", "$(FILE)"],
        "args": ["$(SYNCER)"],
        "env": [{"name": "FILE", "value": "/etc/diloco/x"}, {"name": "SYNCER", "value": "s.job.default.svc:7077"}],
        "workingDir": "/etc/diloco/job",
    }
    addresses = Addresses(9)
    configured = command(a_pod(), container, base={}, defaults={}, sources=NOTHING, names=LocalNames(MOUNTS, addresses.resolve))
    assert configured.argv == ("run", "--file", "/state/etc/x", "127.9.0.2:7077")
    assert configured.env["SYNCER"] == "127.9.0.2:7077"
    assert str(configured.cwd) == "/state/job"
