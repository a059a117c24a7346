"""How the tables of the benchmarks write numbers, and what stands above them."""

from typing import Any


def in_digits(value: float) -> str:
    """Write a number with three digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def in_seconds(value: float) -> str:
    """Write a time in seconds, or in milliseconds if it is below one second."""
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"


def headline(found: dict[str, Any]) -> str:
    """Describe the machine, the time and the versions of a measurement in one line."""
    cores = found["cores"]
    versions = found["versions"]
    return (
        f"{found['machine']}, {cores['logical']} logical cores ({cores['physical']} physical, "
        f"{cores['usable'] or 'all'} usable); "
        f"{found['date']}; commit {found['commit'] or 'unknown'}; "
        f"{', '.join(f'{name} {number}' for name, number in versions.items())}; "
        f"medians of {found['repeats']}"
    )
