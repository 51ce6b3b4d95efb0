"""`python -m site_agent`: the command line."""

from site_agent.main import main

main()
