"""What the syncer knows of the versions that it has made."""

from __future__ import annotations

from diloco.syncer.job.version_checksums import KEPT, KEPT_IN_ALL, VersionChecksums


def test_a_version_may_be_only_the_one_that_was_made() -> None:
    checksums = VersionChecksums()
    checksums.add(0, 7, 0xABC)
    assert checksums.may_be(0, 7, 0xABC)
    assert not checksums.may_be(0, 7, 0xABD)
    assert checksums.may_be(0, 7, 0), "an older program says no checksum"
    assert not checksums.may_be(0, 6, 0xABC), "it was never made, or is no longer known"
    assert not checksums.may_be(1 << 40, 7, 0xABC), "a stranger may name any fragment"


def test_the_newest_versions_are_kept_and_come_back_from_a_snapshot() -> None:
    checksums = VersionChecksums()
    for t in range(1, KEPT + 2):
        checksums.add(3, t, 1000 + t)
    again = VersionChecksums.from_json(checksums.to_json())
    assert [again.of(3, t) for t in (1, 2, KEPT + 1)] == [0, 1002, 1001 + KEPT]
    again.add(3, KEPT + 2, 5)
    assert again.of(3, 2) == 0, "the oldest goes first, after a restart too"


def test_a_job_of_many_fragments_keeps_fewer_versions_of_each() -> None:
    checksums, fragments = VersionChecksums(), KEPT_IN_ALL // 4
    for t in range(1, 7):
        for p in range(fragments):
            checksums.add(p, t, 1)
    assert sum(len(versions) for versions in checksums.to_json().values()) == KEPT_IN_ALL
