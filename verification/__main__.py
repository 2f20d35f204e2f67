"""Command line: run the checks on a few processes, print a table, and exit with 1 if one fails."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from typing import Any

from verification import (
    brute_force,
    comparison,
    failure_models,
    law,
    law_fit,
    luck,
    obedience,
    references,
    score,
    small_problems,
    workflow,
)
from verification.findings import FAMILY_WISE_ERROR_RATE, Check, Finding, Judged, judge

CHECKS: tuple[Check, ...] = (
    law.CHECK,
    luck.CHECK,
    score.CHECK,
    comparison.CHECK,
    references.CHECK,
    obedience.CHECK,
    brute_force.CHECK,
    failure_models.CHECK,
    small_problems.CHECK,
    law_fit.CHECK,
    workflow.CHECK,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks; return 0 if all pass, 1 if one fails, 2 for unusable arguments."""
    parser = argparse.ArgumentParser(prog="python -m verification", description=__doc__)
    names = [check.name for check in CHECKS]
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"which checks: {', '.join(names)}; all by default")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1), help="processes (2)")
    parser.add_argument("--shift", type=int, default=0, help="shift of all seeds: the same checks under other luck (0)")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    given = parser.parse_args(arguments)
    for name in given.checks:
        if name not in names:
            parser.error(f"there is no check {name!r}: expected {', '.join(names)}")
    if given.workers < 1:
        parser.error(f"--workers {given.workers}: expected at least 1")
    chosen = [check for check in CHECKS if not given.checks or check.name in given.checks]
    started = time.monotonic()
    found = run(chosen, given.shift, given.workers)
    judged = judge([finding for findings in found.values() for finding in findings])
    if given.json:
        print(json.dumps([{**asdict(one.finding), "passed": one.passed} for one in judged], indent=1))
    else:
        print_table(found, judged, time.monotonic() - started)
    return 0 if all(one.passed for one in judged) else 1


def run(checks: Sequence[Check], shift: int, workers: int) -> dict[str, list[Finding]]:
    """Do all pieces of work of the checks and return the findings of each."""
    pieces = [(check, job) for check in checks for job in check.jobs(shift)]
    brought: dict[int, Any] = {}
    started, shown = time.monotonic(), sys.stderr.isatty()
    # A fresh interpreter for each process: forking one whose libraries run threads is not safe.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        waiting: dict[Future[Any], int] = {
            pool.submit(check.work, job): place for place, (check, job) in enumerate(pieces)
        }
        last = 0.0
        while waiting:
            finished, _ = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in finished:
                brought[waiting.pop(future)] = future.result()
            seconds = time.monotonic() - started
            if shown or seconds - last >= 15.0:
                last = seconds
                running = next((pieces[place][0].name for place in range(len(pieces)) if place not in brought), "done")
                line = f"{len(brought)} of {len(pieces)} pieces, {seconds:.0f} s, now: {running}"
                print(f"\r{line:<70}" if shown else line, end="" if shown else "\n", file=sys.stderr, flush=True)
    if shown:
        print(f"\r{'':<70}\r", end="", file=sys.stderr, flush=True)
    findings: dict[str, list[Finding]] = {}
    for check in checks:
        own = [place for place, (owner, _) in enumerate(pieces) if owner is check]
        findings[check.name] = check.judge([brought[place] for place in own])
    return findings


def print_table(found: dict[str, list[Finding]], judged: Sequence[Judged], seconds: float) -> None:
    """Print every finding with its statistic, p-value and verdict, and what they add up to."""
    verdicts = iter(judged)
    for name, findings in found.items():
        print(f"\n{name}")
        for finding in findings:
            verdict = next(verdicts)
            p_value = "exact" if finding.p_value is None else f"p = {finding.p_value:.3g}"
            word = "pass" if verdict.passed else "FAIL"
            if finding.control:
                word = "rejected, as it must be" if verdict.passed else "FAIL: was not rejected"
            print(f"  {finding.test:<74} {p_value:<13} {word}\n      {finding.statistic}   [{finding.source}]")
    tests = sum(one.finding.p_value is not None and not one.finding.control for one in judged)
    exact = sum(one.finding.p_value is None and not one.finding.control for one in judged)
    controls = sum(one.finding.control for one in judged)
    failed = [one for one in judged if not one.passed]
    print(
        f"\n{tests} statistical tests at a family-wise error rate of {FAMILY_WISE_ERROR_RATE:g} (Holm), {exact} exact "
        f"tests, {controls} controls that have to be rejected: "
        f"{'all pass' if not failed else f'{len(failed)} FAIL'} ({seconds:.0f} s)"
    )


if __name__ == "__main__":
    raise SystemExit(main())
