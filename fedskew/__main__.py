"""`python -m fedskew` is the command line."""

from fedskew.cli.main import main

main()
