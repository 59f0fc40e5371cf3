from diloco_operator.operator.patience import Patience


def test_a_record_is_put_off_for_so_long_and_no_longer() -> None:
    patience: Patience[str] = Patience(2.0)
    assert [patience.lasts("a", now) for now in (10.0, 11.0, 11.9, 12.0, 50.0)] == [True, True, True, False, False]


def test_patience_begins_anew_once_it_is_written() -> None:
    patience: Patience[str] = Patience(2.0)
    patience.lasts("a", 10.0)
    patience.renew("a")
    patience.renew("never put off")
    assert patience.lasts("a", 12.5)


def test_each_job_has_its_own() -> None:
    patience: Patience[str] = Patience(2.0)
    patience.lasts("a", 10.0)
    assert patience.lasts("b", 12.5)
    assert not patience.lasts("a", 12.5)
