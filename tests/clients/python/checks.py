"""Runs checks one after the other and says how many passed, as the test command counts."""

import sys
import traceback


def run(checks):
    """Prints a line for each, then `N passed, N failed`; gives how many failed."""
    failed = 0
    for check in checks:
        try:
            check()
            print("ok", check.__name__, flush=True)
        except Exception:
            failed += 1
            print("FAILED", check.__name__)
            traceback.print_exc(file=sys.stdout)
    print(f"{len(checks) - failed} passed, {failed} failed", flush=True)
    return failed
