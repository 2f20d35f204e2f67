"""The documented failures of tools, with message templates whose slots are filled from data."""

from __future__ import annotations

from collections.abc import Mapping

from resilisim.tool_library.types import DEPENDENCY_ERROR, ErrorSpec

_SECONDS = ("5", "10", "15", "20", "26", "30", "45", "60", "90", "120")

STANDARD_ERRORS: Mapping[str, ErrorSpec] = {
    error.code: error
    for error in (
        ErrorSpec(
            "INVALID_INPUT",
            "The input does not have the form that the tool works on.",
            "Invalid input (expected: {expected_format})",
            {
                "expected_format": (
                    "UTF-8 text",
                    "a JSON object",
                    "a JSON array of records",
                    "CSV with a header row",
                    "ISO 8601 timestamps",
                    "numeric values without units",
                    "a non-empty data set",
                    "records with unique keys",
                )
            },
        ),
        ErrorSpec(
            "OPERATION_FAILED",
            "The tool started its work and could not finish it.",
            "The operation was not completed (reason: {reason})",
            {
                "reason": (
                    "internal worker restarted",
                    "temporary resource exhausted",
                    "lock held by another job",
                    "checkpoint could not be saved",
                    "unexpected end of stream",
                    "backend returned no result",
                )
            },
        ),
        ErrorSpec(
            "TIMEOUT",
            "The tool did not answer within its time limit.",
            "No result within the time limit (gave up after {seconds} seconds)",
            {"seconds": _SECONDS},
        ),
        ErrorSpec(
            "FILE_NOT_FOUND",
            "No file exists at the given location.",
            "File not found: {path}",
            {
                "path": (
                    "/data/incoming/batch_0417.csv",
                    "/data/incoming/records.json",
                    "/mnt/archive/2024/export.parquet",
                    "/srv/shared/report_final.xlsx",
                    "/var/spool/jobs/input.log",
                )
            },
        ),
        ErrorSpec(
            "PERMISSION_DENIED",
            "The account may not do this with the file.",
            "Permission denied for user '{user}' (missing right: {right})",
            {
                "user": ("svc-pipeline", "etl-worker", "batch", "reporting"),
                "right": ("read", "write", "list directory", "create file"),
            },
        ),
        ErrorSpec(
            "NETWORK_ERROR",
            "The remote side could not be reached or broke the connection off.",
            "Connection to {host} failed: {cause}",
            {
                "host": (
                    "api.internal.example:443",
                    "gateway.example.org:443",
                    "feeds.example.net:8443",
                    "10.20.4.17:9000",
                ),
                "cause": (
                    "connection reset by peer",
                    "name resolution failed",
                    "connection refused",
                    "TLS handshake failed",
                    "HTTP 502 from upstream",
                ),
            },
        ),
        ErrorSpec(
            "RATE_LIMIT_ERROR",
            "The remote side accepts no more requests for the moment.",
            "Rate limit of {limit} requests per minute reached (retry after {seconds} seconds)",
            {"limit": ("30", "60", "100", "600"), "seconds": ("1", "2", "5", "10", "30", "60")},
        ),
        ErrorSpec(
            "CALCULATION_ERROR",
            "The computation has no usable numerical result.",
            "The calculation failed: {cause}",
            {
                "cause": (
                    "division by zero",
                    "singular matrix",
                    "no convergence after 1000 iterations",
                    "result is not a number",
                    "too few observations",
                )
            },
        ),
        ErrorSpec(
            "OVERFLOW",
            "An intermediate result is too large to be represented.",
            "Numeric overflow in stage '{stage}' (magnitude above {bound})",
            {
                "stage": ("accumulate", "exponentiate", "normalise", "rescale"),
                "bound": ("1e308", "3.4e38", "2^63", "2^31"),
            },
        ),
        ErrorSpec(
            "AUTHENTICATION_FAILED",
            "The other system did not accept the credentials.",
            "Authentication failed for client '{client}': {cause}",
            {
                "client": ("integration-hub", "sync-agent", "partner-bridge"),
                "cause": (
                    "token expired",
                    "signature does not match",
                    "unknown client",
                    "scope not granted",
                    "account locked",
                ),
            },
        ),
        ErrorSpec(
            DEPENDENCY_ERROR,
            "The tool ran before the tools that it depends on had succeeded.",
            "Results of required earlier tools are missing",
        ),
    )
}

COMMON_ERROR_CODES = ("INVALID_INPUT", "OPERATION_FAILED", "TIMEOUT")
CATEGORY_ERROR_CODES: Mapping[str, tuple[str, ...]] = {
    "file_operations": ("FILE_NOT_FOUND", "PERMISSION_DENIED"),
    "network": ("NETWORK_ERROR", "RATE_LIMIT_ERROR"),
    "computation": ("CALCULATION_ERROR", "OVERFLOW"),
    "integration": ("AUTHENTICATION_FAILED",),
}


def standard_errors(category: str) -> tuple[ErrorSpec, ...]:
    """Return the errors documented on every tool of a category; an unknown category has the common ones."""
    codes = (*COMMON_ERROR_CODES, *CATEGORY_ERROR_CODES.get(category, ()), DEPENDENCY_ERROR)
    return tuple(STANDARD_ERRORS[code] for code in codes)
