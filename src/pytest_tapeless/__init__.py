"""The fixture `prove`: in somebody else's tests, an op and its kernel are proven in one line.

pytest loads this wherever Tapeless is installed, so nothing is imported before a test asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tapeless.check import Report, Verdict


@pytest.fixture(scope="session")
def prove() -> Callable[..., Report | Verdict]:
    """`tapeless.check.op`, with the same arguments; the test fails with its report unless that says "right"."""
    from tapeless.check import op

    def prove(*arguments: Any, **options: Any) -> Report | Verdict:
        __tracebackhide__ = True
        report: Report | Verdict = op(*arguments, **options)
        if not report:
            pytest.fail(str(report), pytrace=False)
        return report

    return prove
