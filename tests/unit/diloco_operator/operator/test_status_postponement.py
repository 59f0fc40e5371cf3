from diloco_operator.operator.status_postponement import StatusPostponement


def test_a_status_is_postponed_for_a_limited_time() -> None:
    postponement: StatusPostponement[str] = StatusPostponement(2.0)
    assert [postponement.allows("a", now) for now in (10.0, 11.0, 11.9, 12.0, 50.0)] == [True, True, True, False, False]


def test_postponement_begins_anew_once_the_status_is_written() -> None:
    postponement: StatusPostponement[str] = StatusPostponement(2.0)
    postponement.allows("a", 10.0)
    postponement.reset("a")
    postponement.reset("never put off")
    assert postponement.allows("a", 12.5)


def test_each_job_has_its_own() -> None:
    postponement: StatusPostponement[str] = StatusPostponement(2.0)
    postponement.allows("a", 10.0)
    assert postponement.allows("b", 12.5)
    assert not postponement.allows("a", 12.5)
