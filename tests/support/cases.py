"""Which cases of a test the suite leaves to ``-m thorough``."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def leave(cases: Iterable[Any], thorough: Collection[Any]) -> list[Any]:
    """Return cases for ``parametrize``, some of them marked as thorough.

    Args:
      cases: values, a tuple of them where a test takes several.
      thorough: those of ``cases`` that are near others and long.
    """
    cases = list(cases)
    unknown = [case for case in thorough if case not in cases]
    assert not unknown, f"none of the cases: {unknown}"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=pytest.mark.thorough if case in thorough else (),
        )
        for case in cases
    ]
