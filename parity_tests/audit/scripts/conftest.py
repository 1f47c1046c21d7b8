"""The scripts are run by the tests, and never imported: doctests are not looked for in them."""

collect_ignore_glob = ["*.py"]
