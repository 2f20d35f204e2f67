"""`explore_program`: programs whose functions stand under a law, played branch by branch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

import resilisim
from resilisim.errors import InvalidInputError, StoreError
from resilisim.evaluation import gate_runs
from resilisim.exploration import explore_program
from resilisim.injection.functions import Injected
from resilisim.simulator import Law, RateLimit


class Shop:
    """What a program works on."""

    def __init__(self) -> None:
        self.charged = 0
        self.played = 0

    def reset(self) -> None:
        self.charged = 0
        self.played += 1

    def read(self) -> str:
        return "order"

    def charge(self, order: str) -> int:
        self.charged += 1
        return self.charged

    def broken(self) -> None:
        raise OSError("out of paper")


def patient(tools: Injected) -> None:
    """Call both, each at most three times."""
    for name, arguments in (("read", ()), ("charge", ("order",))):
        for _ in range(3):
            try:
                tools[name](*arguments)
                break
            except resilisim.InjectedFailure:
                pass


async def patient_async(tools: Injected) -> None:
    patient(tools)


@pytest.mark.parametrize("program", [patient, patient_async])
def test_the_rate_is_the_closed_form_and_each_play_begins_afresh(program: object) -> None:
    shop = Shop()
    found = explore_program(program, [shop.read, shop.charge], law=0.7, required=["read", "charge"], reset=shop.reset)
    assert found.row.is_exact
    assert found.row.estimate == pytest.approx((1.0 - 0.3**3) ** 2, abs=1e-12)
    assert shop.played == found.row.plays == len(found.records)
    assert math.fsum(record["weight"] for record in found.records) == pytest.approx(1.0, abs=1e-12)
    assert found.row.optimum is not None
    assert found.row.optimum - found.row.low == pytest.approx(math.fsum(found.row.losses.values()), abs=1e-9)


def test_a_check_of_the_end_decides_and_what_is_really_broken_is_no_luck() -> None:
    shop = Shop()
    options = {"law": 0.7, "required": ["read", "charge"], "reset": shop.reset}
    found = explore_program(patient, [shop.read, shop.charge], check=lambda: shop.charged == 2, **options)
    assert found.row.high == 0.0
    assert "wrong_end_state" in found.row.losses

    def prints(tools: Injected) -> None:
        try:
            tools["broken"]()
        except (OSError, resilisim.InjectedFailure):
            patient(tools)

    real = explore_program(prints, [shop.read, shop.charge, shop.broken], **options)
    assert real.row.estimate == pytest.approx((1.0 - 0.3**3) ** 2, abs=1e-12)


def test_it_goes_under_laws_with_parts() -> None:
    shop = Shop()
    law = Law(base=0.7, not_executed=1.0, failed=1.0, history=1.0, rate_limit=RateLimit(1, 2))
    found = explore_program(patient, [shop.read, shop.charge], law=law, required=["read", "charge"])
    # The second of three tries in a row is refused, for there is one call in two messages.
    assert found.row.estimate == pytest.approx((1.0 - 0.3**2) ** 2, abs=1e-12)


def test_a_program_that_makes_other_calls_is_told_which() -> None:
    shop, calls = Shop(), []

    def restless(tools: Injected) -> None:
        calls.append(1)
        for number in (len(calls), len(calls) + 1):
            try:
                tools["read" if number % 2 else "charge"](*(() if number % 2 else ("order",)))
            except Exception:
                continue

    with pytest.raises(
        InvalidInputError, match=r"the program cannot be explored: message 1 is .*charge.* and was .*read"
    ):
        explore_program(restless, [shop.read, shop.charge], law=0.7, required=["read"])


def test_there_has_to_be_something_to_reach() -> None:
    with pytest.raises(InvalidInputError, match="nothing to reach"):
        explore_program(patient, [Shop().read])
    with pytest.raises(InvalidInputError, match="force is an option of inject alone"):
        explore_program(patient, [Shop().read], required=["read"], force=["read#1=ok"])
    with pytest.raises(InvalidInputError, match="program yields yields: expected a function that returns"):
        explore_program(yields, [Shop().read], required=["read"])


def yields(tools: Injected) -> Iterator[object]:
    yield tools["read"]()


def once(tools: Injected) -> None:
    tools["charge"](tools["read"]())


def test_branches_of_programs_stand_in_a_folder_that_is_resumed_reported_and_judged(tmp_path: Path) -> None:
    shop = Shop()
    asked = {"law": 0.8, "required": ["read", "charge"]}
    kept = explore_program(patient, [shop.read, shop.charge], out=tmp_path / "patient", **asked)
    loose = explore_program(patient, [shop.read, shop.charge], **asked)
    assert kept.row == loose.row
    assert [record["weight"] for record in kept.records] == [record["weight"] for record in loose.records]
    path = tmp_path / "patient" / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))  # as after a kill
    (tmp_path / "patient" / "explored.jsonl").unlink()
    again = explore_program(patient, [shop.read, shop.charge], out=tmp_path / "patient", **asked)
    assert (again.row, path.read_bytes()) == (kept.row, b"".join(lines))
    explore_program(once, [shop.read, shop.charge], out=tmp_path / "once", name="patient", **asked)
    gate = gate_runs(tmp_path / "patient", tmp_path / "once")
    assert (gate.verdict, gate.rows[0].is_exact) == ("worse", True)
    assert gate.rows[0].difference == pytest.approx(0.8**2 - kept.row.low)
    with pytest.raises(StoreError, match="another run"):
        explore_program(once, [shop.read, shop.charge], out=tmp_path / "once", **{**asked, "law": 0.7})
