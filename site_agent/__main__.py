"""`python -m site_agent`: the command line."""

from site_agent.cli import main

main()
