"""Values of options of `diloco simulate`."""

import click
import pytest
from diloco_cli.diloco.simulations.options import ForPlace, JoinTime, Rate, Units, rate_text
from diloco_cli.parameters_option import Parameters


@pytest.mark.parametrize(
    ("text", "bits"), [("5Gbit/s", 5e9), ("800Mbit/s", 8e8), ("2.5Gbit/s", 2.5e9), ("64kbit/s", 64e3), ("9bit/s", 9.0)]
)
def test_a_rate_has_a_unit(text: str, bits: float) -> None:
    assert Rate().convert(text, None, None) == bits


@pytest.mark.parametrize("text", ["5", "5Gb", "-1Gbit/s", "Gbit/s", "0Gbit/s", "5 Gbit/s"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"2\.5Gbit/s"):
        Rate().convert(text, None, None)


@pytest.mark.parametrize(("text", "count"), [("7B", 7 * 10**9), ("350M", 350 * 10**6), ("1.3B", 1_300_000_000), ("12", 12)])
def test_a_number_of_parameters_may_have_a_suffix(text: str, count: int) -> None:
    assert Parameters().convert(text, None, None) == count


@pytest.mark.parametrize("text", ["many", "0", "7b", ""])
def test_what_is_no_number_of_parameters_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="350M or 7B"):
        Parameters().convert(text, None, None)


def test_numbers_of_units_are_sorted_and_each_counts_once() -> None:
    assert Units().convert("8,2,4,2", None, None) == (2, 4, 8)


@pytest.mark.parametrize("text", ["", "0", "2,", "2;4", "1025", "two"])
def test_what_is_no_number_of_units_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="2,4,8"):
        Units().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "value"), [("5Gbit/s", ("", 5e9)), ("us-east1=800Mbit/s", ("us-east1", 8e8)), ("us-east1-b=9bit/s", ("us-east1-b", 9.0))]
)
def test_a_value_may_be_that_of_a_place(text: str, value: tuple[str, float]) -> None:
    assert ForPlace(Rate()).convert(text, None, None) == value


@pytest.mark.parametrize(("text", "why"), [("=5Gbit/s", "name the place"), ("us-east1=5", r"'5' is no rate"), ("us-east1=", "no rate")])
def test_what_is_no_place_with_a_value_is_refused(text: str, why: str) -> None:
    with pytest.raises(click.BadParameter, match=why):
        ForPlace(Rate()).convert(text, None, None)


def test_nodes_come_after_a_time() -> None:
    assert JoinTime().convert("h100-*=2h", None, None) == ("h100-*", 7200.0)


@pytest.mark.parametrize("text", ["h100-*", "=2h", "h100-*=soon"])
def test_what_does_not_say_when_nodes_come_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"2h|soon"):
        JoinTime().convert(text, None, None)


@pytest.mark.parametrize(("bits", "text"), [(0.0, "0.0 bit/s"), (950.0, "950 bit/s"), (3.4e9, "3.4 Gbit/s"), (2e13, "20.0 Tbit/s")])
def test_a_rate_is_shown_with_two_or_three_digits(bits: float, text: str) -> None:
    assert rate_text(bits) == text
