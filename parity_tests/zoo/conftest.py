"""Audits of loops, shared by the tests that ask for them."""

from concurrent.futures import ThreadPoolExecutor

import pytest


@pytest.fixture(scope="module")
def cells(request):
    """The audits of the loops that are asked for, two at once."""
    names = [item.callspec.params["name"] for item in request.session.items
             if item.path == request.path and hasattr(item, "callspec")]  # fmt: skip
    from parity_tests.zoo.__main__ import cell_of_audit  # here, for torch may be missing

    pool = ThreadPoolExecutor(2)
    yield {name: pool.submit(cell_of_audit, name) for name in names}
    pool.shutdown(cancel_futures=True)
