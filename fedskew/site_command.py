"""The command `fedskew-site`: the site agent's command line, under a name that clone and wheel share."""

from site_agent.cli import main

__all__ = ["main"]
