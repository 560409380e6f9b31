"""Decides which tokens run next, and runs them: from a Request to its Events. See request.py for their order."""
